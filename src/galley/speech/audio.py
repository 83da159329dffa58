"""Recordings in common formats to mono float32 samples, about a second at a time.

FFmpeg decodes (through PyAV), soxr resamples. Memory does not grow with a recording's length.
"""

from __future__ import annotations

import io
import itertools
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias

import av
import numpy as np
import soxr
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from galley.errors import AudioError, AudioTooLong
from galley.speech.features import SAMPLE_RATE as SAMPLE_RATE
from galley.speech.headers import WavHeader, ogg_is_cut_off, states_length, wav_header
from galley.speech.loudness import normalized

Samples: TypeAlias = NDArray[np.float32]
"""Mono, in [-1, 1]."""

Source: TypeAlias = str | Path | bytes | BinaryIO
"""A path (never an address on the network), the file's bytes, or an open file that can seek."""


MIN_RATE: Final = 4_000
MAX_RATE: Final = 768_000
MAX_CHANNELS: Final = 64
MAX_PLANES: Final = 8
"""Channels of an encoding that keeps each apart; FFmpeg has the further ones elsewhere."""
READABLE: Final = "wav, mp3, flac, ogg, opus, m4a, mp4, aac, webm"

# FFmpeg's names. Formats that name other files or addresses (playlists) must stay out.
_DEMUXERS: Final = "aac,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpeg,ogg,wav"
# FFmpeg has hundreds of decoders, most of them for video and for games; these are all that may see a file.
_CODECS: Final = (
    *("aac", "aac_latm", "ac3", "alac", "eac3", "flac", "opus", "libopus", "speex", "vorbis"),
    *("mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "gsm", "gsm_ms", "g722"),
    *("amrnb", "amrwb", "libopencore_amrnb", "libopencore_amrwb", "adpcm_ms", "adpcm_ima_wav"),
    *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw"),
    *("pcm_s8", "pcm_s16be", "pcm_s24be", "pcm_s32be", "pcm_f32be", "pcm_f64be", "pcm_mulaw"),
)
_GUARD: Final = {
    "format_whitelist": _DEMUXERS,
    "codec_whitelist": ",".join(_CODECS),
    "protocol_whitelist": "none",
}
_DTYPES: Final = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}
"""FFmpeg's name of a sample type -> numpy's."""
_MISSING_SECONDS: Final = 0.5
"""Missing audio, compared with the length that a file states, from which a warning is given."""

_CUT_OFF: Final = "is damaged at its end, or cut off there"


@dataclass(frozen=True)
class RawPcm:
    """Format of a file without a header; channels are interleaved."""

    sample_rate: int
    channels: int = 1
    type: Literal["s16le", "s24le", "s32le", "f32le", "u8", "mulaw", "alaw"] = "s16le"


class Recording:
    """One recording as mono blocks of about a second, decoded while iterating.

    Iterate only once. Blocks are float32 ``[samples]`` in [-1, 1] at ``sample_rate``; channels are
    averaged.

    Args:
        source: what to read.
        sample_rate: of the blocks, in Hz.
        raw: format of a ``source`` without a header; default: the header states the format.
        normalize: even out loudness, so that a quiet caller is as loud as a loud one.
        max_seconds: longer recordings are refused, at once if they state their length.
        name: the recording's name in error messages; default: its path.

    Attributes:
        duration: in seconds, as the file states it; None if it does not.
        warnings: damaged parts that were skipped; complete after the last block.

    Raises:
        AudioError: the recording cannot be read or, while iterating, cannot be decoded.
        AudioTooLong: the recording is longer than ``max_seconds``.
    """

    def __init__(
        self,
        source: Source,
        *,
        sample_rate: int = SAMPLE_RATE,
        raw: RawPcm | None = None,
        normalize: bool = False,
        max_seconds: float | None = None,
        name: str = "",
    ) -> None:
        self._name = name or (str(source) if isinstance(source, str | Path) else "the recording")
        self._sample_rate = sample_rate
        self._normalize = normalize
        self._max_seconds = max_seconds
        self._samples = 0
        self.warnings: list[str] = []
        self._opened: list[BinaryIO | InputContainer] = []
        try:
            self._stream, self.duration = self._open(source, raw)
        except BaseException:
            self.close()
            raise
        if max_seconds is not None and self.duration is not None and self.duration > max_seconds:
            self.close()
            raise self._too_long(f"lasts {self.duration:.0f} s")

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """Seconds of audio decoded so far."""
        return self._samples / self._sample_rate

    def close(self) -> None:
        """Closes what was opened here; a file object that was handed in stays open."""
        while self._opened:
            self._opened.pop().close()

    def __iter__(self) -> Iterator[Samples]:
        blocks = _resampled(self._decoded(), self._sample_rate)
        if self._normalize:
            blocks = normalized(blocks, self._sample_rate)
        try:
            for block in blocks:
                np.clip(block, -1.0, 1.0, out=block)  # resampling overshoots
                self._samples += len(block)
                if self._max_seconds is not None and self.seconds > self._max_seconds:
                    raise self._too_long("goes on")
                yield block
            self._conclude()
        finally:
            self.close()

    def _open(self, source: Source, raw: RawPcm | None) -> tuple[AudioStream, float | None]:
        file = self._file(source)
        wav = wav_header(file) if raw is None else None
        if wav is not None and wav.present == 0:
            raise AudioError(f"{self._name} is a WAV header without samples")
        format_, options = (None, _GUARD) if raw is None else _raw_options(raw)
        with self._ffmpeg_errors(f"is not audio in a format that Galley reads ({READABLE})"):
            container = av.open(file, "r", format_, options, metadata_errors="ignore")
        self._opened.append(container)
        if not container.streams.audio:
            raise AudioError(f"{self._name} holds no audio stream")
        stream = container.streams.audio[0]
        self._check(stream, wav)
        self._warn_if_cut_off(file, container.format.name, wav)
        stated = container.duration is not None and states_length(file, container.format.name)
        return stream, (container.duration or 0) / av.time_base if stated else None

    def _check(self, stream: AudioStream, wav: WavHeader | None) -> None:
        codec = stream.codec_context
        if codec is None or codec.name not in _CODECS:
            encoding = "an unknown encoding" if codec is None else f"the encoding {codec.name}"
            if wav is not None:
                encoding += f" (WAV format tag {wav.format_tag:#06x}, {wav.bits} bits a sample)"
            raise AudioError(f"{self._name} has {encoding}, which Galley does not read")
        if not MIN_RATE <= codec.rate <= MAX_RATE or not 0 < codec.channels <= MAX_CHANNELS:
            raise AudioError(
                f"{self._name} has {codec.channels} channels at {codec.rate} Hz; Galley reads "
                f"up to {MAX_CHANNELS} channels at {MIN_RATE} to {MAX_RATE} Hz"
            )

    def _warn_if_cut_off(self, file: BinaryIO, demuxer: str, wav: WavHeader | None) -> None:
        if wav is not None and wav.is_cut_off:
            self.warnings.append(
                f"the header of {self._name} announces {wav.announced} bytes of samples, but "
                f"{wav.present} follow: the file was cut off, or its header is wrong"
            )
        elif demuxer == "ogg" and ogg_is_cut_off(file):
            self.warnings.append(f"{self._name} {_CUT_OFF}")

    def _file(self, source: Source) -> BinaryIO:
        if isinstance(source, bytes):
            return io.BytesIO(source)
        if not isinstance(source, str | Path):
            return source
        try:
            file = Path(source).open("rb")  # noqa: SIM115  (closed by close)
        except OSError as error:
            raise AudioError(f"{source} cannot be read: {error.strerror}") from error
        self._opened.append(file)
        return file

    def _decoded(self) -> Iterator[tuple[int, Samples]]:
        """(sample rate, mono samples) of each frame; damaged packets are skipped and counted."""
        damaged = 0
        with self._ffmpeg_errors("cannot be decoded"):
            for packet in self._packets():
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:
                    damaged += 1
                    continue
                for frame in frames:
                    yield frame.sample_rate, self._mono(frame)
        if damaged:
            self.warnings.append(f"{damaged} damaged packets of {self._name} were left out")

    def _packets(self) -> Iterator[Any]:
        container: Any = self._stream.container
        try:
            yield from container.demux(self._stream)
        except av.error.InvalidDataError:
            self.warnings.append(f"{self._name} {_CUT_OFF}")

    def _mono(self, frame: AudioFrame) -> Samples:
        channels = frame.layout.nb_channels  # may change from frame to frame
        if not 0 < channels <= (MAX_PLANES if frame.format.is_planar else MAX_CHANNELS):
            raise AudioError(
                f"{self._name} has {channels} channels; Galley reads up to {MAX_PLANES} of this encoding"
            )
        mono = _mono(frame)
        if not np.isfinite(mono).all():
            raise AudioError(f"{self._name} has samples that are not numbers (NaN or infinite)")
        return np.clip(mono, -1.0, 1.0)

    def _conclude(self) -> None:
        if self._samples == 0:
            raise AudioError(f"{self._name} holds no audio that can be decoded")
        if self.duration is not None and self.duration - self.seconds > _MISSING_SECONDS:
            self.warnings.append(
                f"{self._name} has {self.seconds:.1f} s of the {self.duration:.1f} s that it states: "
                "it is damaged, or was cut off"
            )

    def _too_long(self, what: str) -> AudioTooLong:
        return AudioTooLong(f"{self._name} {what}; the limit is {self._max_seconds:g} s")

    @contextmanager
    def _ffmpeg_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except av.error.FFmpegError as error:
            raise AudioError(f"{self._name} {what} ({error.strerror})") from error


def _raw_options(raw: RawPcm) -> tuple[str, dict[str, str]]:
    return raw.type, {"sample_rate": str(raw.sample_rate), "ch_layout": f"{raw.channels}c"}


def _mono(frame: AudioFrame) -> Samples:
    """The mean of the channels, in float32 whatever the file's sample type is.

    ``AudioFrame.to_ndarray`` of PyAV must not be used: from eight planes on it reads beyond the frame's
    list of planes, which ends the process.
    """
    channels = frame.layout.nb_channels
    planes = frame.planes[: channels if frame.format.is_planar else 1]
    dtype, count = _DTYPES[frame.format.packed.name], frame.samples * channels // len(planes)
    samples = np.stack([np.frombuffer(memoryview(plane), dtype, count) for plane in planes])
    if not frame.format.is_planar:
        samples = samples.reshape(-1, channels).T
    mono: Samples = samples.mean(axis=0, dtype=np.float32) if channels > 1 else samples[0]
    if np.issubdtype(samples.dtype, np.floating):
        return mono.astype(np.float32, copy=False)
    half = np.float32(2 ** (8 * samples.dtype.itemsize - 1))
    offset = half if samples.dtype == np.uint8 else np.float32(0)
    return (mono.astype(np.float32, copy=False) - offset) / half


def _resampled(frames: Iterable[tuple[int, Samples]], to_rate: int) -> Iterator[Samples]:
    """Blocks at one sample rate from frames whose rate may change in the middle, as in joined files."""
    for rate, run in itertools.groupby(frames, key=operator.itemgetter(0)):
        blocks = _joined((samples for _, samples in run), rate)
        if rate == to_rate:
            yield from blocks
            continue
        resampler = soxr.ResampleStream(rate, to_rate, 1, dtype="float32", quality="HQ")
        for block in blocks:
            yield from _unless_empty(resampler.resample_chunk(block))
        yield from _unless_empty(resampler.resample_chunk(np.empty(0, np.float32), last=True))


def _joined(frames: Iterable[Samples], size: int) -> Iterator[Samples]:
    """Blocks of at least ``size`` samples: a frame of some 20 ms is too little for a call of its own."""
    waiting: list[Samples] = []
    count = 0
    for frame in frames:
        waiting.append(frame)
        count += len(frame)
        if count >= size:
            yield np.concatenate(waiting)
            waiting, count = [], 0
    if waiting:
        yield from _unless_empty(np.concatenate(waiting))


def _unless_empty(block: Samples) -> Iterator[Samples]:
    if len(block):
        yield block
