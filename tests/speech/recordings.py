"""A recorded call, and recordings made here in every format."""

import io
from pathlib import Path

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

CALL = Path(__file__).parent / "data" / "call.ogg"
"""20 s of a telephone call, English."""

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
}
"""name -> (FFmpeg's container, codec, Hz)"""


def tone(
    seconds: float, rate: int, *, hertz: float = 440.0, peak: float = 0.5
) -> NDArray[np.float32]:
    return (peak * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def encode(kind: str, *channels: NDArray[np.float32]) -> bytes:
    """The bytes of a file with these channels, which have the rate that ``kind`` is encoded at."""
    container_format, codec, rate = CODECS[kind]
    layout = "mono" if len(channels) == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        context = stream.codec_context
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
