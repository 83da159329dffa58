"""What a file's header says of its length, where FFmpeg does not tell whether to believe it."""

from typing import BinaryIO, Final

from galley.errors import AudioError

_UNKNOWN_LENGTH: Final = 0x7FFFF000
"""Sizes from here on are what programs write that could not go back to the header."""
_MAX_CHUNKS: Final = 1024
_LENGTH_TAGS: Final = (b"Xing", b"Info", b"VBRI")
_TAG_WITHIN: Final = 4096


def check_riff(file: BinaryIO, name: str) -> None:
    """A WAV file must hold the samples that its header announces; other files pass.

    FFmpeg would read up to the end of the file and say nothing.

    Raises:
        AudioError: the data chunk is longer than what is left of the file, or there is none.
    """
    start = file.tell()
    try:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return
        announced = _data_bytes(file)
        position = file.tell()
        left = file.seek(0, 2) - position
    finally:
        file.seek(start)
    if left == 0:
        raise AudioError(f"{name} is a WAV header without samples")
    if left < announced < _UNKNOWN_LENGTH:
        raise AudioError(
            f"the header of {name} announces {announced} bytes of samples, but {left} follow: "
            "the file was cut off, or its header is wrong"
        )


def _data_bytes(file: BinaryIO) -> int:
    """The size of the data chunk, which the file then stands at; at the end if there is none."""
    for _ in range(_MAX_CHUNKS):
        chunk = file.read(8)
        size = int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"data" or len(chunk) < 8:
            return size
        file.seek(size + size % 2, 1)
    return 0


def states_length(file: BinaryIO, demuxer: str) -> bool:
    """Whether FFmpeg's duration is what the file states; else it is guessed from the bit rate.

    MPEG audio states its length in a tag of its first frame, if its encoder wrote one.
    """
    if demuxer != "mp3":
        return demuxer not in ("aac", "mpeg")
    position = file.tell()
    try:
        file.seek(0)
        head = file.read(10)
        if head[:3] == b"ID3":
            file.seek(_synchsafe(head[6:10]), 1)
        first = file.read(_TAG_WITHIN)
    finally:
        file.seek(position)
    return any(tag in first for tag in _LENGTH_TAGS)


def _synchsafe(field: bytes) -> int:
    """ID3v2 sizes have seven bits a byte (id3.org, "ID3v2.4.0 main structure", 3.1)."""
    return sum((byte & 0x7F) << shift for byte, shift in zip(field, (21, 14, 7, 0), strict=True))
