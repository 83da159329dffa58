"""The word error rate of a call, estimated from how sure the recognizer was of its words.

A logistic regression, which ``recipes/wer.py`` fits to calls whose words are known. Signal-to-noise ratio,
no-speech probability and compression ratio as further features did not improve it for speakers held out.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.calls.quality import Quality

WEIGHTS: Final = (-1.233, -2.313, -2.55, 2.317)
"""Bias, and weight of each feature, of whisper-tiny.en: benchmarks/notes/2026-11-27-estimated-wer.md."""

_LEAST_LOGPROB: Final = -5.0


def features_of(quality: Quality) -> list[float] | None:
    """Return the features of a call with a transcript: those of its words and tokens; else None."""
    probability, mean = quality.mean_word_probability, quality.mean_logprob
    unsure = quality.unsure_words_share
    if probability is None or mean is None or unsure is None:
        return None
    return [probability, max(_LEAST_LOGPROB, mean), unsure]


def estimated_wer(
    features: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the estimates for ``[calls, 3]`` features, float64 ``[calls]`` from 0 to 1."""
    found: NDArray[np.float64] = 1 / (1 + np.exp(-(weights[0] + features @ weights[1:])))
    return found


def estimate(quality: Quality) -> float | None:
    """Return the estimated word error rate of a call, 0 to 1; None without words."""
    features = features_of(quality)
    if features is None:
        return None
    return round(float(estimated_wer(np.array([features]), np.array(WEIGHTS))[0]), 4)
