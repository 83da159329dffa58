"""A recorded call, and generated recordings in every format."""

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.container import OutputContainer
from av.stream import Disposition
from numpy.typing import NDArray

CALL = Path(__file__).parent / "data" / "call.ogg"
"""20 s of a telephone call, English."""


@cache
def brief() -> bytes:
    """Return one second of the call as WAV, for tests to which what is said does not matter."""
    with av.open(str(CALL)) as source:
        resampler = av.AudioResampler("flt", "mono", 16_000)
        parts = [part for frame in source.decode(audio=0) for part in resampler.resample(frame)]
    samples = np.concatenate([part.to_ndarray()[0] for part in parts])
    return encode("wav", samples[32_000:48_000])


CODECS = {
    "wav": ("wav", "pcm_s16le", 16_000),
    "wav-float": ("wav", "pcm_f32le", 48_000),
    "wav-float-16": ("wav", "pcm_f32le", 16_000),
    "wav-24": ("wav", "pcm_s24le", 44_100),
    "wav-8": ("wav", "pcm_u8", 16_000),
    "wav-telephone": ("wav", "pcm_mulaw", 8_000),
    "mp3": ("mp3", "libmp3lame", 44_100),
    "flac": ("flac", "flac", 16_000),
    "ogg": ("ogg", "libopus", 48_000),
    "m4a": ("ipod", "aac", 44_100),
    "webm": ("webm", "libopus", 48_000),
    "aac": ("adts", "aac", 44_100),
    "aiff": ("aiff", "pcm_s16be", 44_100),
    "au": ("au", "pcm_s16be", 16_000),
    "caf": ("caf", "pcm_s16be", 44_100),
    "w64": ("w64", "pcm_s16le", 48_000),
    "wma": ("asf", "wmav2", 44_100),
    "avi": ("avi", "libmp3lame", 44_100),
    "mpeg-ts": ("mpegts", "mp2", 48_000),
}
"""name -> (FFmpeg's container, codec, Hz)"""


def tone(
    seconds: float, rate: int, *, hertz: float = 440.0, peak: float = 0.5
) -> NDArray[np.float32]:
    return (peak * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def encode(kind: str, *channels: NDArray[np.float32]) -> bytes:
    """Return a file with these channels, at the sample rate of ``kind``."""
    container_format, codec, rate = CODECS[kind]
    layout = "mono" if len(channels) == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        context = stream.codec_context
        if codec == "wmav2":  # which has no default
            context.bit_rate = 64_000
        frame = AudioFrame.from_ndarray(np.stack(channels), format="fltp", layout=layout)
        frame.sample_rate = rate
        convert = av.AudioResampler(context.format.name, layout, rate)
        fifo = av.AudioFifo()
        for part in convert.resample(frame):
            fifo.write(part)
        while (full := fifo.read(context.frame_size or 1024, partial=True)) is not None:
            container.mux(stream.encode(full))
        container.mux(stream.encode(None))
    return file.getvalue()


VIDEO = {
    "mp4": "mpeg4",
    "mov": "mpeg4",
    "matroska": "mpeg4",
    "webm": "libvpx",
    "mpegts": "mpeg2video",
}
"""FFmpeg's container -> a video codec for it."""


class Track(NamedTuple):
    """One audio track of a film.

    Attributes:
        parts: start in seconds and samples, float32 ``[channels, samples]``, of each part.
        layout: FFmpeg's name of the channel layout.
        default: whether the file marks it as its default.
    """

    parts: Sequence[tuple[float, NDArray[np.float32]]]
    layout: str = "mono"
    default: bool = False


def film(container_format: str, *tracks: Track, video: float = 0.0, codec: str = "aac") -> bytes:
    """Return a file with these tracks, at 48 kHz, and this many seconds of video."""
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        packets: list[Any] = []
        if video:
            rate = 25 if container_format == "mpegts" else 5
            stream = container.add_stream(VIDEO[container_format], rate=rate)
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            if container_format == "webm":
                stream.codec_context.options = {"deadline": "realtime", "cpu-used": "8"}
            for number in range(round(video * rate)):
                picture = av.VideoFrame(64, 48, "yuv420p")
                picture.pts = number
                packets += stream.encode(picture)
            packets += stream.encode(None)
        for track in tracks:
            packets += _sound(container, track, codec)
        packets.sort(key=lambda p: float((p.dts or 0) * (p.time_base or 1)))
        container.mux(packets)
    return file.getvalue()


def _sound(container: OutputContainer, track: Track, codec: str) -> Iterator[Any]:
    rate = 48_000
    stream = container.add_stream(codec, rate=rate, layout=track.layout)
    assert isinstance(stream, av.AudioStream)
    if track.default:
        stream.disposition = Disposition.default
    format_ = stream.codec_context.format.name
    # A flushed codec context accepts no more input, so all parts use one context, with their timestamps.
    for start, channels in track.parts:
        frame = AudioFrame.from_ndarray(channels, format="fltp", layout=track.layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(format_, track.layout, rate)
        fifo = av.AudioFifo()
        for part in resampler.resample(frame):
            part.pts = None
            fifo.write(part)
        pts = round(start * rate)
        size = stream.codec_context.frame_size or 1024
        while (full := fifo.read(size, partial=not stream.codec_context.frame_size)) is not None:
            full.pts, full.time_base = pts, Fraction(1, rate)
            pts += full.samples
            yield from stream.encode(full)
    yield from stream.encode(None)
