"""Files of speech, read again by FFmpeg and by Python's wave."""

import io
import wave
from typing import Any

import av
import numpy as np
import pytest

from galley.speech.pcm import PcmStream
from galley.tts.encode import FORMATS, PCM_RATE, AudioFormat, encoder, telephony_encoder, wav_header

RATE = 22_050
TONE = (12_000 * np.sin(2 * np.pi * 440 / RATE * np.arange(2 * RATE))).astype("<i2").tobytes()


def encoded(form: AudioFormat, *, size: int = 7_000) -> tuple[bytes, list[int]]:
    """Return the file of the tone, and the bytes after each part of it."""
    encoding = encoder(form, RATE)
    data, lengths = b"", []
    for at in range(0, len(TONE), size):
        data += encoding.encode(TONE[at : at + size])
        lengths.append(len(data))
    return data + encoding.finish(), lengths


def heard(form: AudioFormat, data: bytes) -> tuple[Any, int]:
    if form == "pcm":
        return np.frombuffer(data, "<i2").astype(float), PCM_RATE
    with av.open(io.BytesIO(data), "r") as file:
        [stream] = file.streams.audio
        resampler = av.AudioResampler(format="s16", layout="mono", rate=stream.rate)
        frames = [made for frame in file.decode(stream) for made in resampler.resample(frame)]
        return np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(
            float
        ), stream.rate


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_written_as_the_samples_come(form: AudioFormat) -> None:
    data, lengths = encoded(form)
    samples, rate = heard(form, data)
    assert len(samples) / rate == pytest.approx(
        2, abs=0.1
    )  # whole frames, and those that a codec begins with
    middle = samples[rate // 2 : rate // 2 + rate]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * rate / len(middle) == pytest.approx(440, abs=2)
    assert np.sqrt((middle**2).mean()) == pytest.approx(12_000 / np.sqrt(2), rel=0.1)
    # Half a second in, at most a quarter of a second is held back.
    half = len(lengths) // 4
    assert lengths[half] > len(data) / 8


def test_a_wav_file_of_known_length() -> None:
    with wave.open(io.BytesIO(wav_header(RATE, len(TONE)) + TONE)) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (RATE, 2 * RATE, 1)
        assert file.readframes(2 * RATE) == TONE
    with wave.open(io.BytesIO(encoded("wav")[0])) as file:
        assert file.readframes(2 * RATE) == TONE


def test_a_length_beyond_the_header_is_not_stated() -> None:
    assert wav_header(RATE, 1 << 32) == wav_header(RATE)


@pytest.mark.parametrize("form", ["mp3", "aac", "opus"])
@pytest.mark.parametrize("rate", [10_000, 96_000])
def test_a_rate_that_a_codec_lacks_is_converted(form: AudioFormat, rate: int) -> None:
    encoding = encoder(form, rate)
    tone = (12_000 * np.sin(2 * np.pi * 440 / rate * np.arange(rate))).astype("<i2").tobytes()
    samples, coded = heard(form, encoding.encode(tone) + encoding.finish())
    assert len(samples) / coded == pytest.approx(1, abs=0.2)
    middle = samples[coded // 4 : coded // 4 + coded // 2]
    assert np.argmax(np.abs(np.fft.rfft(middle))) * coded / len(middle) == pytest.approx(440, abs=4)


@pytest.mark.parametrize(("form", "coding"), [("audio/pcmu", "mulaw"), ("audio/pcma", "alaw")])
def test_telephones_formats_are_those_that_live_audio_is_read_in(form: str, coding: Any) -> None:
    encoding = telephony_encoder(form, RATE)
    data = b"".join(encoding.encode(TONE[at : at + 7_000]) for at in range(0, len(TONE), 7_000))
    data += encoding.finish()
    assert len(data) == pytest.approx(2 * 8_000, abs=50)
    heard = np.concatenate([*PcmStream(coding, 8_000).feed(data)])
    middle = heard[8_000:24_000]
    assert np.argmax(np.abs(np.fft.rfft(middle))) == pytest.approx(440, abs=2)
    assert np.sqrt((middle**2).mean()) == pytest.approx(12_000 / 32_768 / np.sqrt(2), rel=0.05)
