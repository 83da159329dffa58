"""Features equal transformers' own, for every number of bands and input length."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from galley.errors import ModelError
from galley.speech.features import LogMel
from galley.types.audio import SpeechInfo
from tests.speech.recordings import tone

SHAPES = [(80, 30), (128, 30), (80, 8), (128, 5), (40, 1)]
"""(bands, seconds of the longest input)"""


def voice(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Return harmonics of a gliding pitch that come and go, in noise: as irregular as speech."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * 16_000)) / 16_000
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(3 * time)) / 16_000
    sound = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(5 * time) > -0.3)
    return (0.1 * sound + 0.001 * rng.standard_normal(len(time))).astype(np.float32)


def expected(
    samples: NDArray[np.float32], mels: int, seconds: int, padding: str
) -> NDArray[np.float32]:
    extractor = WhisperFeatureExtractor(feature_size=mels, chunk_length=seconds)
    out = extractor(samples, sampling_rate=16_000, padding=padding, return_tensors="np")
    features: NDArray[np.float32] = out["input_features"][0].T
    return features


@pytest.mark.parametrize(("mels", "seconds"), SHAPES)
@pytest.mark.parametrize("filled", [0.0, 0.3, 0.995, 1.0])
def test_features_are_transformers_own(mels: int, seconds: int, filled: float) -> None:
    samples = voice(seconds * filled)
    features = LogMel(mels, seconds)(samples)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected(samples, mels, seconds, "max_length"), atol=1e-4)


@pytest.mark.parametrize("samples", [400, 401, 1599, 47_999, 48_000])
def test_features_without_padding_at_their_end_are_transformers_own(samples: int) -> None:
    sound = voice(3)[:samples]
    features = LogMel(80, 30, pad=False)(sound)
    np.testing.assert_allclose(features, expected(sound, 80, 30, "do_not_pad"), atol=1e-4)


@pytest.mark.parametrize(
    "sound",
    [
        tone(2, 16_000, hertz=1000, peak=1.0),
        np.zeros(32_000, np.float32),
        np.eye(1, 32_000, 16_000, dtype=np.float32)[0],
        np.sign(tone(2, 16_000, hertz=200)),
        1e-4 * voice(2),
    ],
    ids=["tone", "silence", "click", "square", "whisper"],
)
def test_extreme_sounds_are_transformers_own(sound: NDArray[np.float32]) -> None:
    for mels in (80, 128):
        features = LogMel(mels, 3)(sound)
        np.testing.assert_allclose(features, expected(sound, mels, 3, "max_length"), atol=1e-4)


def speech(mels: int = 80, max_frames: int = 800) -> SpeechInfo:
    return SpeechInfo(mels=mels, max_frames=max_frames, stride=2, start_token=0)


def test_a_checkpoint_says_how_its_features_are_made(tmp_path: Path) -> None:
    features = LogMel.of_model(tmp_path, speech())
    assert features(voice(1)).shape == (800, 80)
    WhisperFeatureExtractor(feature_size=128, chunk_length=5).save_pretrained(tmp_path)
    sound = voice(4)
    found = LogMel.of_model(tmp_path, speech(128, 500))(sound)
    np.testing.assert_allclose(found, expected(sound, 128, 5, "max_length"), atol=1e-4)
    WhisperFeatureExtractor(chunk_length=8, padding="do_not_pad").save_pretrained(tmp_path)
    assert LogMel.of_model(tmp_path, speech())(voice(1)).shape == (100, 80)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_fft": 512}, "n_fft is 512; only 400 is"),
        ({"hop_length": 320}, "hop_length is 320; only 160 is"),
        ({"sampling_rate": 8000}, "sampling_rate is 8000; only 16000 is"),
        ({"feature_size": 128}, "feature_size: is 128, but the model has 80 mel bins"),
        (
            {"padding": "longest"},
            "padding is 'longest'; supported are 'max_length' and 'do_not_pad'",
        ),
    ],
)
def test_other_features_than_whispers_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(changes))
    with pytest.raises(ModelError, match=message):
        LogMel.of_model(tmp_path, speech())


def test_a_few_samples_are_a_frame_too() -> None:
    assert LogMel(80, 30, pad=False)(voice(0.001)).shape == (2, 80)


def test_a_chunk_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="16001 samples is longer than 16000"):
        LogMel(80, 1)(np.zeros(16_001, np.float32))
