"""File properties that FFmpeg does not report: whether a file was cut off, and what its header states."""

from typing import BinaryIO, Final, NamedTuple

_UNKNOWN_LENGTH: Final = 0x7FFFF000
"""Sizes from this value up mean "unknown"; programs that stream cannot seek back to write the size."""
_MAX_CHUNKS: Final = 1024
_OGG_PAGE: Final = 27 + 255 + 255 * 255
"""Size of the longest Ogg page, in bytes."""
_OGG_LAST: Final = 4
"""Flag of the last page of a stream in an Ogg file."""
_LENGTH_TAGS: Final = (b"Xing", b"Info", b"VBRI")
_TAG_WITHIN: Final = 4096


class WavHeader(NamedTuple):
    """A WAV file's header (Microsoft, "Multiple channel audio data and WAVE files").

    Attributes:
        announced: number of sample bytes that the header states.
        present: number of bytes that follow the header.
        format_tag: sample encoding: 1 is PCM, 3 is float, 0xFFFE is given by a GUID later in the header.
        bits: bits per sample.
    """

    announced: int
    present: int
    format_tag: int
    bits: int

    @property
    def is_cut_off(self) -> bool:
        """Whether fewer bytes follow than the header states, which FFmpeg does not report."""
        return self.present < self.announced < _UNKNOWN_LENGTH


def wav_header(file: BinaryIO) -> WavHeader | None:
    """Return the header of a WAV file; None for a file of another format."""
    start = file.tell()
    try:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return None
        form = b""
        for _ in range(_MAX_CHUNKS):
            chunk = file.read(8)
            size = int.from_bytes(chunk[4:], "little")
            if len(chunk) < 8:
                break
            position = file.tell()
            if chunk[:4] == b"data":
                present = file.seek(0, 2) - position
                return WavHeader(size, present, _number(form[0:2]), _number(form[14:16]))
            if chunk[:4] == b"fmt ":
                form = file.read(16)
            file.seek(position + size + size % 2)
        return WavHeader(0, 0, _number(form[0:2]), _number(form[14:16]))
    finally:
        file.seek(start)


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little")


def ogg_is_cut_off(file: BinaryIO) -> bool:
    """Return whether an Ogg file ends within a page or before its stream's last page (RFC 3533, 6).

    FFmpeg reads such a file up to its last whole page without an error.
    """
    start = file.tell()
    try:
        size = file.seek(0, 2)
        file.seek(max(0, size - _OGG_PAGE))
        tail = file.read(_OGG_PAGE)
    finally:
        file.seek(start)
    at = len(tail)
    while (at := tail.rfind(b"OggS\0", 0, at)) >= 0:
        header = tail[at : at + 27]
        if len(header) == 27 and header[5] < 8:
            lacing = tail[at + 27 : at + 27 + header[26]]
            whole = len(lacing) == header[26] and at + 27 + len(lacing) + sum(lacing) <= len(tail)
            return not whole or not header[5] & _OGG_LAST
        if len(header) < 27:
            return True
    return True


def states_length(file: BinaryIO, demuxer: str) -> bool:
    """Return whether the file states the duration that FFmpeg reports.

    Otherwise FFmpeg estimates it from the bit rate, time stamps or chunks. MP3 files state the duration in
    a tag of the first frame, if the encoder wrote one.
    """
    if demuxer != "mp3":
        return demuxer not in ("aac", "avi", "mpeg", "mpegts")
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
    """Decode an ID3v2 size, which has seven bits per byte (id3.org, "ID3v2.4.0 main structure", 3.1)."""
    return sum((byte & 0x7F) << shift for byte, shift in zip(field, (21, 14, 7, 0), strict=True))
