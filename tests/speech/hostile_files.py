"""Small files that demand much time, memory or output, assembled byte by byte."""

import struct
from collections.abc import Callable, Iterable
from typing import Final


def _crc(data: bytes, bits: int, polynomial: int) -> int:
    rest = 0
    for byte in data:
        rest ^= byte << (bits - 8)
        for _ in range(8):
            rest = rest << 1 ^ (polynomial if rest >> (bits - 1) & 1 else 0)
    return rest & ((1 << bits) - 1)


def flac(frames: Iterable[tuple[int, int]]) -> bytes:
    """Return a FLAC file of silent frames (RFC 9639), each given by its samples and its declared rate."""
    sizes = struct.pack(">HH", 16, 65_535) + bytes(6)
    stream = sizes + struct.pack(">Q", 16_000 << 44 | 15 << 36) + bytes(16)
    head = b"fLaC\x80" + struct.pack(">I", len(stream))[1:] + stream
    return head + b"".join(_frame(n, *frame) for n, frame in enumerate(frames))


def _frame(number: int, samples: int, rate: int) -> bytes:
    # Both as 16 bits after the header; mono, 16 bits; the number in UTF-8's coding.
    head = b"\xff\xf8\x7d\x08" + chr(number).encode() + struct.pack(">HH", samples - 1, rate)
    head += bytes([_crc(head, 8, 0x107)])
    whole = head + b"\0\0\0"  # one constant subframe of zeros
    return whole + struct.pack(">H", _crc(whole, 16, 0x18005))


def _box(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I", 8 + len(data)) + kind + data


def _full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def _u32(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


_MATRIX: Final = _u32(0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


def _track(number: int, *, samples: int, size: int, each: int, offset: int) -> bytes:
    """Return a track of PCM (ISO/IEC 14496-12): samples of ``size`` bytes that last ``each`` per frame."""
    entry = _box(
        b"sowt", bytes(6) + b"\0\1" + bytes(8) + struct.pack(">4HI", 1, 16, 0, 0, 16_000 << 16)
    )
    table = _box(
        b"stbl",
        _full(b"stsd", _u32(1), entry),
        _full(b"stts", _u32(1, samples, each)),
        _full(b"stsc", _u32(1, 1, samples, 1)),
        _full(b"stsz", _u32(size, samples)),
        _full(b"stco", _u32(1, offset)),
    )
    here = _box(b"dinf", _full(b"dref", _u32(1), _full(b"url ", flags=1)))
    media = _box(
        b"mdia",
        _full(b"mdhd", _u32(0, 0, 16_000, 0), b"\x55\xc4\0\0"),
        _full(b"hdlr", _u32(0), b"soun", bytes(13)),
        _box(b"minf", _full(b"smhd", bytes(4)), here, table),
    )
    head = _full(b"tkhd", _u32(0, 0, number, 0, 0), bytes(16), _MATRIX, bytes(8), flags=3)
    return _box(b"trak", head, media)


def _mp4(
    tracks: Iterable[bytes], samples: bytes, *, more: bytes = b"", behind: bytes = b""
) -> bytes:
    head = _full(
        b"mvhd", _u32(0, 0, 1000, 0, 0x10000), b"\1\0", bytes(10), _MATRIX, bytes(24), _u32(99)
    )
    return (
        _box(b"ftyp", b"isom", _u32(512), b"isommp42")
        + _box(b"moov", head, *tracks, more)
        + behind
        + _box(b"mdat", samples)
    )


def mp4(tracks: int, samples: int = 8_000) -> bytes:
    """Return a valid MP4 file: half a second of silence, shared by all tracks."""

    def at(offset: int) -> bytes:
        return _mp4(
            (_track(n + 1, samples=samples, size=2, each=1, offset=offset) for n in range(tracks)),
            bytes(2 * samples),
        )

    return at(len(at(0)) - 2 * samples)


def sample_sizes(tracks: int, samples: int) -> bytes:
    """Return an MP4 whose tracks claim many samples, in a table of one number (``stsz``)."""
    made = (
        _track(n + 1, samples=samples, size=4097, each=1024, offset=4000) for n in range(tracks)
    )
    return _mp4(made, bytes(8_000))


def runs(fragments: int, samples: int) -> bytes:
    """Return an MP4 whose fragments each claim many samples (``trun``)."""
    every = _box(b"mvex", _full(b"trex", _u32(1, 1, 1, 2, 0)))
    fragment = [
        _box(
            b"moof",
            _full(b"mfhd", _u32(n + 1)),
            _box(
                b"traf",
                _full(b"tfhd", _u32(1), flags=0x20000),
                _full(b"trun", _u32(samples, 0), flags=1),
            ),
        )
        for n in range(fragments)
    ]
    track = _track(1, samples=0, size=0, each=1, offset=0)
    return _mp4([track], bytes(8_000), more=every, behind=b"".join(fragment))


TOO_MUCH: Final[dict[str, tuple[Callable[[], bytes], str]]] = {
    "flac-one-hertz": (lambda: flac([(4096, 16_000), (65_535, 1), (4096, 16_000)]), "at 1 Hz"),
    "flac-rates": (lambda: flac((16, 65_521 - n) for n in range(1500)), "audio_decode_seconds"),
    "flac-hours": (lambda: flac([(65_535, 4_000)] * 20), "too much for a file of its size"),
    "stsz-many-tracks": (lambda: sample_sizes(20, 30_000_000), "no decodable audio"),
    "stsz-one-track": (lambda: sample_sizes(1, 50_000_000), "no decodable audio"),
    "trun-large": (lambda: runs(1, 50_000_000), "audio_decode_bytes"),
    "trun-many": (lambda: runs(100, 3_000_000), "audio_decode_bytes"),
}
"""Name -> what makes the file, and what is said of it where a second and 128 MiB are granted."""
