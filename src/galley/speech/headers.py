"""Checks of the length that a file's header states, which FFmpeg does not make."""

from typing import BinaryIO, Final

from galley.errors import AudioError

_UNKNOWN_LENGTH: Final = 0x7FFFF000
"""Sizes from here on mean "unknown": programs that stream write them because they cannot seek back."""
_MAX_CHUNKS: Final = 1024
_LENGTH_TAGS: Final = (b"Xing", b"Info", b"VBRI")
_TAG_WITHIN: Final = 4096


def check_riff(file: BinaryIO, name: str) -> None:
    """Checks that a WAV file holds all samples that its header announces; files of other formats pass.

    FFmpeg reads a truncated file up to its end without an error.

    Raises:
        AudioError: the header announces more data than the file has, or the file has no samples.
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
    """The size of the data chunk, which the file is then positioned at; at its end if there is none."""
    for _ in range(_MAX_CHUNKS):
        chunk = file.read(8)
        size = int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"data" or len(chunk) < 8:
            return size
        file.seek(size + size % 2, 1)
    return 0


def states_length(file: BinaryIO, demuxer: str) -> bool:
    """Whether FFmpeg's duration is stated in the file, not estimated from the bit rate.

    MP3 files state it in a tag of the first frame, if the encoder wrote one.
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
