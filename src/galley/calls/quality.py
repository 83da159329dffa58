"""The quality of a call: of its sound, and of its transcript."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from galley.speech.decoder import Audio
from galley.speech.results import Segment
from galley.speech.segmenter import VAD_FRAME
from galley.speech.vad import Leveled, SpeechDetector

_SPEECH: Final = 0.5
_NO_SPEECH: Final = 0.1
_FULL_SCALE: Final = 0.985
"""Level of clipped samples: resampling moves them a little."""
_UNSURE: Final = 0.5
_SAME: Final = 0.01
"""Channels whose difference has a smaller share of their energy have the same sound."""


class Quality(msgspec.Struct, kw_only=True):
    """``quality.json``. A value that cannot be measured is None.

    Attributes:
        seconds: length of the recording.
        speech_share: share of the time in which somebody speaks.
        speech_level_db: mean level of speech, in dB below full scale.
        snr_db: level of speech above that of the pauses, in dB.
        clipped_share: share of samples at full scale.
        mean_logprob: mean log-probability of the transcript's tokens, in nats.
        unsure_words_share: share of words with a probability below a half.
        warnings: what the decoder and the recognizer were unsure of.
    """

    seconds: float
    speech_share: float
    speech_level_db: float | None
    snr_db: float | None
    clipped_share: float
    mean_logprob: float | None = None
    unsure_words_share: float | None = None
    warnings: tuple[str, ...] = ()


def measure(recording: Audio, detector: SpeechDetector) -> Quality:
    """Measure the sound of a recording, which is closed afterwards. Memory: 8 bytes for each 32 ms.

    Raises:
        AudioError: the recording cannot be decoded any further.
    """
    stream = Leveled(detector.stream())
    probabilities, powers = [], []
    left = np.zeros(0, np.float32)
    clipped = count = 0
    try:
        for block in recording:
            probabilities.append(stream.feed(block))
            clipped += int((np.abs(block) >= _FULL_SCALE).sum())
            count += len(block)
            samples = np.concatenate([left, block])
            whole = len(samples) // VAD_FRAME * VAD_FRAME
            frames, left = samples[:whole].reshape(-1, VAD_FRAME), samples[whole:]
            powers.append(np.square(frames).mean(axis=1))
    finally:
        recording.close()
    found = np.concatenate([*probabilities, np.zeros(0, np.float32)])
    power = np.concatenate([*powers, np.zeros(0, np.float32)])
    spoken, silent = power[found >= _SPEECH], power[found < _NO_SPEECH]
    speech = float(spoken.mean()) if len(spoken) else 0.0
    noise = float(silent.mean()) if len(silent) else 0.0
    return Quality(
        seconds=round(recording.seconds, 3),
        speech_share=round(len(spoken) / max(1, len(found)), 4),
        speech_level_db=_decibels(speech),
        snr_db=_decibels((speech - noise) / noise) if noise else None,
        clipped_share=round(clipped / max(1, count), 6),
    )


def _decibels(power: float) -> float | None:
    return round(10 * float(np.log10(power)), 1) if power > 0 else None


def differ(one: Audio, other: Audio) -> bool:
    """Return whether two channels of a recording have different sounds; both are closed afterwards."""
    energy = difference = 0.0
    try:
        for a, b in zip(one, other, strict=False):
            length = min(len(a), len(b))
            energy += float(np.square(a[:length]).sum() + np.square(b[:length]).sum())
            difference += float(np.square(a[:length] - b[:length]).sum())
    finally:
        one.close()
        other.close()
    return difference > _SAME * energy


def add_transcript(
    quality: Quality, segments: Sequence[Segment], warnings: tuple[str, ...]
) -> Quality:
    """Return the quality with that of the transcript."""
    words = [word for segment in segments for word in segment.words or ()]
    known = [word.probability for word in words if word.probability is not None]
    weights = [len(segment.text) for segment in segments]
    mean = unsure = None
    if sum(weights):
        mean = round(float(np.average([s.avg_logprob for s in segments], weights=weights)), 4)
    if known:
        unsure = round(sum(probability < _UNSURE for probability in known) / len(known), 4)
    return msgspec.structs.replace(
        quality, mean_logprob=mean, unsure_words_share=unsure, warnings=warnings
    )
