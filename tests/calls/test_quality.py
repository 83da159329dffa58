"""The quality report: levels, noise, clipping and channels of recordings that are made so."""

import numpy as np
import pytest

from galley.calls.quality import Quality, add_transcript, differ, measure
from galley.speech.audio import Recording, Samples
from galley.speech.results import Segment, Word
from galley.speech.sources import RawPcm
from galley.speech.vad import SpeechDetector
from tests.speech.voices import READ


def of(samples: Samples) -> Recording:
    pcm = np.clip(samples * 32_768, -32_768, 32_767).astype("<i2").tobytes()
    return Recording(pcm, raw=RawPcm(16_000))


def report(samples: Samples) -> Quality:
    return measure(of(samples), SpeechDetector())


@pytest.fixture(scope="module")
def speech() -> Samples:
    samples = np.concatenate(list(Recording(READ / "austen-2.flac")))
    samples = samples * np.float32(0.5 / np.abs(samples).max())
    return np.concatenate([np.zeros(32_000, np.float32), samples, np.zeros(32_000, np.float32)])


@pytest.mark.parametrize("snr", [10, 25])
def test_noise_is_measured(speech: Samples, snr: int) -> None:
    spoken = speech[32_000:-32_000]
    level = np.sqrt(np.square(spoken).mean() / 10 ** (snr / 10))
    noise = np.random.default_rng(0).normal(size=len(speech)) * level
    found = report((speech + noise).astype(np.float32))
    assert found.snr_db == pytest.approx(snr, abs=2.5)
    expected = 10 * np.log10(np.square(spoken).mean())
    assert found.speech_level_db == pytest.approx(expected, abs=2)


def test_the_share_of_speech_is_measured(speech: Samples) -> None:
    share = (len(speech) - 64_000) / len(speech)
    assert report(speech).speech_share == pytest.approx(share, abs=0.12)


def test_clipping_is_measured(speech: Samples) -> None:
    assert report(speech).clipped_share == 0
    loud = np.clip(speech * 8, -1, 1)
    expected = float((np.abs(loud) >= 0.985).mean())
    assert expected > 0.01
    assert report(loud).clipped_share == pytest.approx(expected, rel=0.05)


def test_silence_has_no_levels() -> None:
    found = report(np.zeros(16_000, np.float32))
    assert (found.speech_share, found.speech_level_db, found.snr_db) == (0, None, None)
    assert found.seconds == 1


def test_channels_differ_if_their_sounds_do(speech: Samples) -> None:
    noise = np.random.default_rng(0).normal(size=len(speech)).astype(np.float32) * 0.001
    assert not differ(of(speech), of(speech + noise))
    assert differ(of(speech), of(speech[::-1].copy()))
    assert not differ(of(np.zeros(16_000, np.float32)), of(np.zeros(16_000, np.float32)))


def test_the_quality_of_the_transcript_is_that_of_its_words(speech: Samples) -> None:
    words = (Word(" a", 0, 1, 0.9), Word(" b", 1, 2, 0.2), Word(" c", 2, 3))
    segments = [
        Segment(id=0, start=0, end=3, text=" a b c", words=words, avg_logprob=-0.2),
        Segment(id=1, start=3, end=4, text=" d", avg_logprob=-1.0),
    ]
    found = add_transcript(report(speech[:16_000]), segments, ("quiet",))
    assert found.mean_logprob == pytest.approx(-0.4)
    assert (found.unsure_words_share, found.warnings) == (0.5, ("quiet",))
    empty = add_transcript(report(speech[:16_000]), [], ())
    assert (empty.mean_logprob, empty.unsure_words_share) == (None, None)
