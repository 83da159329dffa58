"""Converts recordings in common formats to mono float32 samples, about a second at a time.

FFmpeg (through PyAV) decodes and soxr resamples. Memory use does not grow with a recording's length.
Untrusted recordings are decoded in a separate process, see :mod:`galley.speech.decoder`.
"""

from __future__ import annotations

import io
import itertools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Disposition
from numpy.typing import NDArray

from galley.errors import AudioError, AudioTooLong, RequestError
from galley.speech.features import SAMPLE_RATE as SAMPLE_RATE
from galley.speech.headers import WavHeader, ogg_is_cut_off, states_length, wav_header
from galley.speech.loudness import normalized
from galley.speech.mixing import channels_of, mix, weights_of
from galley.speech.resample import joined, resampled, silence_lengths
from galley.speech.sources import TWO
from galley.speech.sources import RawPcm as RawPcm
from galley.speech.sources import Samples as Samples
from galley.speech.sources import Source as Source
from galley.speech.timeline import Timeline

MIN_RATE: Final = 4_000
MAX_RATE: Final = 768_000
MAX_CHANNELS: Final = 64
MAX_PLANES: Final = 8
"""Maximum channels of a planar encoding; FFmpeg stores the pointers of more channels elsewhere."""
READABLE: Final = (
    "wav, mp3, flac, ogg, opus, m4a, mp4, aac, webm, mkv, aiff, caf, au, w64, wma, avi, mpeg-ts"
)

# FFmpeg's names. Never add formats that refer to other files or addresses (playlists).
_DEMUXERS: Final = (
    "aac,aiff,asf,au,avi,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpeg,mpegts,ogg,w64,wav"
)
# FFmpeg has hundreds of decoders, most of them for video and games; only these are allowed.
_CODECS: Final = (
    *("aac", "aac_latm", "ac3", "alac", "eac3", "flac", "opus", "libopus", "speex", "vorbis"),
    *("mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "gsm", "gsm_ms", "g722"),
    *("amrnb", "amrwb", "libopencore_amrnb", "libopencore_amrwb", "adpcm_ms", "adpcm_ima_wav"),
    *("adpcm_ima_qt", "wmav1", "wmav2", "wmapro", "wmalossless", "wmavoice"),
    *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw"),
    *("pcm_s8", "pcm_s16be", "pcm_s24be", "pcm_s32be", "pcm_f32be", "pcm_f64be", "pcm_mulaw"),
)
_GUARD: Final = {
    "format_whitelist": _DEMUXERS,
    "codec_whitelist": ",".join(_CODECS),
    "protocol_whitelist": "none",
}
_MISSING_SECONDS: Final = 0.5
"""Seconds missing of a file's stated length from which a warning is given."""
_BLOCK_VALUES: Final = 2**21
"""Number of sample values, counting all channels, mixed at a time."""
_SILENT: Final = 1e-4
"""Peak below which a recording counts as silent (-80 dB)."""
_ANY_FILE_SECONDS: Final = 60.0
_SECONDS_PER_BYTE: Final = 0.25
"""A file may decode to a minute plus a second per four bytes. Real encodings of silence stay below that."""

_CUT_OFF: Final = "is damaged at its end, or truncated"


class _Frame(NamedTuple):
    rate: int
    places: tuple[str, ...]
    samples: NDArray[np.float32]


class Recording:
    """One recording as mono blocks of about a second, decoded while iterating.

    Iterate only once. Blocks are float32 ``[samples]`` in [-1, 1] at ``sample_rate``; channels are mixed by
    :mod:`galley.speech.mixing`. With ``apart``, those of a track with two channels are ``[samples, 2]``.
    Gaps in the time stamps are filled with silence.

    Args:
        source: the recording to read.
        sample_rate: sample rate of the blocks, in Hz.
        raw: format of a ``source`` without a header; default: the header states the format.
        normalize: even out loudness, so that a quiet caller is as loud as a loud one.
        max_seconds: longer recordings are rejected, immediately if they state their length.
        name: the recording's name in error messages; default: its path.
        track: the audio track to read, counted from 1; default: the file's own default track.
        channel: the track's channel to read, counted from 1; default: all channels, mixed.
        apart: keep two channels apart; neither with ``channel`` nor with ``normalize``.

    Attributes:
        channels: number of channels that the file states for the track.
        duration: the duration in seconds that the file states; None if it states none.
        warnings: warnings about skipped damaged parts and about a silent recording; complete after the last
            block.

    Raises:
        AudioError: the recording cannot be read or, while iterating, cannot be decoded.
        AudioTooLong: the recording is longer than ``max_seconds``.
        RequestError: there is no such track or channel.
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
        track: int | None = None,
        channel: int | None = None,
        apart: bool = False,
    ) -> None:
        assert not (apart and (normalize or channel is not None))
        self._name = name or (str(source) if isinstance(source, str | Path) else "the recording")
        self._sample_rate = sample_rate
        self._normalize = normalize
        self._max_seconds = max_seconds
        self._track = track
        self._channel = channel
        self._apart = apart
        self.channels = 0  # see _check
        self._samples = 0
        self._peak = 0.0
        self._reached = 0.0
        self._ended_early = False
        self.warnings: list[str] = []
        self._opened: list[BinaryIO | InputContainer] = []
        try:
            self._stream, self._start, self.duration = self._open(source, raw)
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

    @property
    def _keeps_two(self) -> bool:
        return self._apart and self.channels == TWO

    def close(self) -> None:
        """Close the files that this object opened; a file object passed in by the caller stays open."""
        while self._opened:
            self._opened.pop().close()

    def __iter__(self) -> Iterator[Samples]:
        blocks = resampled(self._mixed(), self._sample_rate, TWO if self._keeps_two else 1)
        if self._normalize:
            blocks = normalized(blocks, self._sample_rate)
        try:
            for block in blocks:
                np.clip(block, -1.0, 1.0, out=block)  # resampling can overshoot
                self._samples += len(block)
                self._peak = max(self._peak, float(np.abs(block).max()))
                self._check_length(self.seconds)
                yield block
            self._conclude()
        finally:
            self.close()

    def _open(self, source: Source, raw: RawPcm | None) -> tuple[AudioStream, float, float | None]:
        """Return the stream, the recording's first time stamp and the length it states, both in seconds."""
        file = self._file(source)
        self._most_seconds = _ANY_FILE_SECONDS + _SECONDS_PER_BYTE * _size(file)
        wav = wav_header(file) if raw is None else None
        if wav is not None and wav.present == 0:
            raise AudioError(f"{self._name} is a WAV header without samples")
        format_, options = (None, _GUARD) if raw is None else _raw_options(raw)
        with self._ffmpeg_errors(f"is not audio in a supported format ({READABLE})"):
            container = av.open(file, "r", format_, options, metadata_errors="ignore")
        self._opened.append(container)
        stream = self._chosen(container)
        self._check(stream, wav)
        demuxer = container.format.name
        self._warn_if_cut_off(file, demuxer, wav)
        start = (container.start_time or 0) / av.time_base
        if not states_length(file, demuxer):
            return stream, start, None
        unit = stream.time_base
        if len(container.streams) > 1 and stream.duration and unit:  # other streams can be longer
            return stream, start, float((stream.duration + (stream.start_time or 0)) * unit) - start
        length = None if container.duration is None else container.duration / av.time_base
        return stream, start, length

    def _chosen(self, container: InputContainer) -> AudioStream:
        tracks = container.streams.audio
        if not tracks:
            raise AudioError(f"{self._name} contains no audio stream")
        if self._track is None:
            marked = (i for i, t in enumerate(tracks, 1) if t.disposition & Disposition.default)
            self._track = next(marked, 1)
        if not 1 <= self._track <= len(tracks):
            raise RequestError(
                f"track: {self._name} has {len(tracks)} audio tracks, got {self._track}",
                param="track",
            )
        return tracks[self._track - 1]

    def _check(self, stream: AudioStream, wav: WavHeader | None) -> None:
        codec = stream.codec_context
        if codec is None or codec.name not in _CODECS:
            encoding = "an unknown encoding" if codec is None else f"the encoding {codec.name}"
            if wav is not None:
                encoding += f" (WAV format tag {wav.format_tag:#06x}, {wav.bits} bits per sample)"
            raise AudioError(f"{self._name} has {encoding}, which is not supported")
        self._check_sizes(codec.rate, codec.channels, MAX_CHANNELS)
        self.channels = codec.channels
        if self._channel is not None and not 1 <= self._channel <= self.channels:
            raise RequestError(
                f"{self._name} has no channel {self._channel}; number of channels: {self.channels}",
                param="channel",
            )

    def _check_sizes(self, rate: int, channels: int, most: int) -> None:
        if not MIN_RATE <= rate <= MAX_RATE or not 0 < channels <= most:
            raise AudioError(
                f"{self._name} has {channels} channels at {rate} Hz; supported are up to {most} channels "
                f"of this encoding at {MIN_RATE} to {MAX_RATE} Hz"
            )

    def _warn_if_cut_off(self, file: BinaryIO, demuxer: str, wav: WavHeader | None) -> None:
        if wav is not None and wav.is_cut_off:
            self.warnings.append(
                f"the header of {self._name} declares {wav.announced} bytes of samples, but "
                f"{wav.present} follow: the file is truncated, or its header is wrong"
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
            raise AudioError(f"cannot read {source}: {error.strerror}") from error
        self._opened.append(file)
        return file

    def _mixed(self) -> Iterator[tuple[int, Samples]]:
        """Yield (sample rate, samples) of about a second each: of one channel, of all mixed, or of two."""
        for (rate, places), run in itertools.groupby(
            self._decoded(), key=operator.attrgetter("rate", "places")
        ):
            weights = weights_of(places)
            most = min(rate, _BLOCK_VALUES // len(places))
            needed = TWO if self._keeps_two else self._channel or 1
            if needed > len(places):
                raise AudioError(
                    f"{self._name} has no channel {needed} after {self.seconds:.1f} s, where it "
                    f"changes to {len(places)} channels"
                )
            for block in joined((frame.samples for frame in run), most):
                if self._keeps_two:
                    yield rate, np.ascontiguousarray(block[:TWO].T)
                elif self._channel is None:
                    yield rate, mix(block, weights)
                else:
                    yield rate, block[self._channel - 1]

    def _decoded(self) -> Iterator[_Frame]:
        """Yield the frames, with silence for gaps in the time stamps. Damaged packets are skipped."""
        damaged = 0
        timeline = Timeline(self._stream.container.format.name, self._start)
        for packet in self._packets():
            try:
                frames: list[AudioFrame] = packet.decode()
            except av.error.EOFError:
                continue
            except av.error.MemoryError:
                raise
            except av.error.FFmpegError:
                damaged += 1
                continue
            for frame in frames:
                rate, places, samples = self._frame(frame)
                silence = timeline.silence_before(frame)
                self._check_length(self.seconds + silence)  # before any silence is created
                for length in silence_lengths(silence, rate):
                    timeline.advance(length, rate)
                    yield _Frame(rate, places, np.zeros((len(places), length), np.float32))
                timeline.advance(samples.shape[1], rate)
                yield _Frame(rate, places, samples)
        if damaged:
            self.warnings.append(f"{damaged} damaged packets of {self._name} were skipped")

    def _packets(self) -> Iterator[Any]:
        """Yield the stream's packets. The packets of other streams show how long the file is."""
        container: Any = self._stream.container
        try:
            for packet in container.demux():
                if packet.stream is self._stream:
                    yield packet
                elif packet.pts is not None and packet.time_base is not None:
                    self._reached = max(self._reached, float(packet.pts * packet.time_base))
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError as error:
            self._ended_early = True
            if isinstance(error, av.error.InvalidDataError):
                self.warnings.append(f"{self._name} {_CUT_OFF}")
                return
            self.warnings.append(
                f"{self._name} cannot be read to its end ({error.strerror}); the part before was "
                "transcribed"
            )

    def _frame(self, frame: AudioFrame) -> _Frame:
        """Convert a frame, whose rate, channels and layout may differ from the previous frame's."""
        layout = frame.layout
        most = MAX_PLANES if frame.format.is_planar else MAX_CHANNELS
        self._check_sizes(frame.sample_rate, layout.nb_channels, most)
        samples = channels_of(frame)
        if not np.isfinite(samples).all():
            raise AudioError(f"{self._name} has samples that are not numbers (NaN or infinite)")
        np.clip(samples, -1.0, 1.0, out=samples)
        return _Frame(frame.sample_rate, tuple(c.name for c in layout.channels), samples)

    def _conclude(self) -> None:
        if self._samples == 0:
            raise AudioError(f"{self._name} contains no decodable audio")
        reached = max(self.seconds, self._reached - self._start)
        missing = 0.0 if self.duration is None else self.duration - reached
        if missing > _MISSING_SECONDS and not self._ended_early:
            self.warnings.append(
                f"{self._name} has {self.seconds:.1f} s of audio, but states {self.duration:.1f} s: "
                "it is damaged or truncated"
            )
        if self._peak < _SILENT:
            self.warnings.append(f"{self._name} contains only silence{self._other_tracks()}")

    def _other_tracks(self) -> str:
        tracks = len(self._stream.container.streams.audio)
        if tracks == 1:
            return ""
        return f" in its audio track {self._track} of {tracks}; `track` chooses another"

    def _check_length(self, seconds: float) -> None:
        if self._max_seconds is not None and seconds > self._max_seconds:
            raise self._too_long("is too long")
        if seconds > self._most_seconds:
            raise AudioError(
                f"{self._name} decodes to more than {self._most_seconds:.0f} s of audio, too much for a "
                "file of its size"
            )

    def _too_long(self, what: str) -> AudioTooLong:
        return AudioTooLong(f"{self._name} {what}; the limit is {self._max_seconds:g} s")

    @contextmanager
    def _ffmpeg_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError as error:
            raise AudioError(f"{self._name} {what} ({error.strerror})") from error


def _raw_options(raw: RawPcm) -> tuple[str, dict[str, str]]:
    return raw.type, {"sample_rate": str(raw.sample_rate), "ch_layout": f"{raw.channels}c"}


def _size(file: BinaryIO) -> int:
    position = file.tell()
    size = file.seek(0, io.SEEK_END)
    file.seek(position)
    return size
