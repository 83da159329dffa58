"""Audio formats of speech, written as the samples arrive (PyAV, extra ``speech``)."""

import struct
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from galley.errors import SettingsError, pip_install

AudioFormat: TypeAlias = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
FORMATS: Final[tuple[AudioFormat, ...]] = get_args(AudioFormat)

MEDIA_TYPES: Final[dict[AudioFormat, str]] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

PCM_RATE: Final = 24000
"""Sample rate of ``pcm``, which has no header to state another: that of OpenAI's API."""

_UNKNOWN: Final = 0xFFFFFFFF
"""Length in the header of a WAV file that is not complete yet."""

_CODECS: Final = {
    "mp3": ("mp3", "libmp3lame"),
    "opus": ("ogg", "libopus"),
    "aac": ("adts", "aac"),
    "flac": ("flac", "flac"),
}
"""Format -> FFmpeg's container and codec."""

_OPTIONS: Final[dict[str, dict[str, str]]] = {
    # Pages of a fifth of a second instead of a whole one; a header that nobody can go back to complete.
    "opus": {"page_duration": "200000"},
    "mp3": {"write_xing": "0", "id3v2_version": "0"},
}
_BIT_RATES: Final = {"mp3": 64000, "opus": 32000, "aac": 64000}
_LAWS: Final = {"audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}
_G711_RATE: Final = 8000
_OPUS_RATE: Final = 48000


class Encoder(Protocol):
    """Turns samples into the bytes of one file."""

    def encode(self, samples: bytes) -> bytes:
        """Add samples, 16-bit mono, and return the bytes that are complete."""

    def finish(self) -> bytes:
        """Return the last bytes."""


def encoder(form: AudioFormat, rate: int) -> Encoder:
    """Return an encoder for samples of a rate, in samples per second.

    Raises:
        SettingsError: the format needs PyAV, which is not installed.
    """
    if form == "wav":
        return _Wav(rate)
    return _Pcm(rate) if form == "pcm" else _Compressed(form, rate)


def telephony_encoder(form: str, rate: int) -> Encoder:
    """Return an encoder for one of the formats of live audio.

    Args:
        form: "audio/pcm", as ``pcm`` is; "audio/pcmu" or "audio/pcma": G.711 at 8 kHz.
        rate: of the samples, per second.

    Raises:
        SettingsError: PyAV is not installed.
    """
    return _Pcm(rate) if form == "audio/pcm" else _G711(_LAWS[form], rate)


def wav_header(rate: int, size: int | None = None) -> bytes:
    """Return the header of a WAV file, 16-bit mono.

    Args:
        rate: samples per second.
        size: bytes of the samples; None, or 4 GB and more: the header says that it is not known.
    """
    data = whole = _UNKNOWN
    if size is not None and size + 36 < _UNKNOWN:
        data, whole = size, size + 36
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", whole, b"WAVE", b"fmt ", 16)
        + form
        + struct.pack("<4sI", b"data", data)
    )


class _Wav:
    def __init__(self, rate: int) -> None:
        self._header = wav_header(rate)

    def encode(self, samples: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + samples

    def finish(self) -> bytes:
        return self.encode(b"")


class _Pcm:
    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._resampler = None
        if rate != PCM_RATE:
            self._resampler = _av().AudioResampler(format="s16", layout="mono", rate=PCM_RATE)

    def encode(self, samples: bytes) -> bytes:
        if self._resampler is None or not samples:
            return samples
        return _joined(self._resampler.resample(_frame(samples, self._rate)))

    def finish(self) -> bytes:
        return b"" if self._resampler is None else _joined(self._resampler.resample(None))


class _G711:
    def __init__(self, codec: str, rate: int) -> None:
        self._rate = rate
        self._codec: Any = _av().CodecContext.create(codec, "w")
        self._codec.sample_rate, self._codec.format = _G711_RATE, "s16"
        self._codec.layout = "mono"
        self._resampler = _av().AudioResampler(format="s16", layout="mono", rate=_G711_RATE)

    def encode(self, samples: bytes) -> bytes:
        return self._encoded(_frame(samples, self._rate)) if samples else b""

    def finish(self) -> bytes:
        return self._encoded(None)

    def _encoded(self, frame: Any) -> bytes:
        frames = [one for one in self._resampler.resample(frame) if one.samples]
        return b"".join(bytes(packet) for one in frames for packet in self._codec.encode(one))


class _Sink:
    """A file that can only be written; FFmpeg writes what is complete."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def taken(self) -> bytes:
        data = bytes(self._written)
        self._written.clear()
        return data


class _Compressed:
    def __init__(self, form: str, rate: int) -> None:
        self._rate = rate
        self._sink = _Sink()
        container, codec = _CODECS[form]
        self._file: Any = _av().open(
            self._sink, "w", format=container, options=_OPTIONS.get(form, {})
        )
        coded = _OPUS_RATE if form == "opus" else _coded_rate(codec, rate)
        self._stream = self._file.add_stream(codec, rate=coded, layout="mono")
        if form in _BIT_RATES:
            self._stream.bit_rate = _BIT_RATES[form]

    def encode(self, samples: bytes) -> bytes:
        if samples:
            self._file.mux(self._stream.encode(_frame(samples, self._rate)))
        return self._sink.taken()

    def finish(self) -> bytes:
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.taken()


def _coded_rate(codec: str, rate: int) -> int:
    """Return the rate that a codec takes which is nearest above a rate, or else its highest."""
    rates = _av().Codec(codec, "w").audio_rates
    return (
        rate
        if not rates or rate in rates
        else min((r for r in rates if r > rate), default=max(rates))
    )


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise SettingsError(
            f"this format needs av, which cannot be imported ({error}): {pip_install('voice')}"
        ) from error
    return av


def _frame(samples: bytes, rate: int) -> Any:
    frame = _av().AudioFrame(format="s16", layout="mono", samples=len(samples) // 2)
    frame.sample_rate = rate
    # The buffer may be longer than the samples, for alignment.
    plane = frame.planes[0]
    plane.update(samples + bytes(plane.buffer_size - len(samples)))
    return frame


def _joined(frames: "list[Any]") -> bytes:
    return b"".join(bytes(frame.planes[0])[: 2 * frame.samples] for frame in frames)
