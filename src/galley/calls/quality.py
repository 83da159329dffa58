"""The quality of a call: of its sound, and of its transcript."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from galley.speech.decoder import Audio
from galley.speech.non_speech import Sounds, Times
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
        mean_word_probability: mean probability of the words.
        no_speech_probability: probability that a chunk has no speech; the mean of the transcript's chunks.
        compression_ratio: of the text of the chunk that repeats itself most.
        estimated_wer: estimated word error rate, 0 to 1; see :mod:`galley.calls.estimate`.
        warnings: what the decoder and the recognizer were unsure of.
        music: start and end of each passage of music, in seconds; of two channels, those of both.
        key_presses: start and end of each tone of a telephone's key, in seconds.
    """

    seconds: float
    speech_share: float
    speech_level_db: float | None
    snr_db: float | None
    clipped_share: float
    mean_logprob: float | None = None
    unsure_words_share: float | None = None
    mean_word_probability: float | None = None
    no_speech_probability: float | None = None
    compression_ratio: float | None = None
    estimated_wer: float | None = None
    warnings: tuple[str, ...] = ()
    music: tuple[Times, ...] = ()
    key_presses: tuple[Times, ...] = ()


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
    """Return whether two channels of a recording have different audio; both are closed afterwards."""
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


def add_sounds(quality: Quality, found: Sequence[Sounds]) -> Quality:
    """Return the quality with the sounds of each channel."""
    music, keys = ([one[kind] for one in found] for kind in (0, 1))
    return msgspec.structs.replace(quality, music=_in_order(music), key_presses=_in_order(keys))


def _in_order(channels: Sequence[Sequence[Times]]) -> tuple[Times, ...]:
    times = sorted(one for channel in channels for one in channel)
    return tuple((round(start, 2), round(end, 2)) for start, end in times)


def add_transcript(
    quality: Quality, segments: Sequence[Segment], warnings: tuple[str, ...]
) -> Quality:
    """Return the quality with that of the transcript."""
    words = [word for segment in segments for word in segment.words or ()]
    known = [word.probability for word in words if word.probability is not None]
    weights = [len(segment.text) for segment in segments]
    found: dict[str, float] = {}
    if sum(weights):
        found = {
            "mean_logprob": np.average([s.avg_logprob for s in segments], weights=weights),
            "no_speech_probability": np.average(
                [s.no_speech_prob for s in segments], weights=weights
            ),
            "compression_ratio": max(s.compression_ratio for s in segments),
        }
    if known:
        found["unsure_words_share"] = sum(p < _UNSURE for p in known) / len(known)
        found["mean_word_probability"] = sum(known) / len(known)
    rounded = {name: round(float(value), 4) for name, value in found.items()}
    return msgspec.structs.replace(quality, **rounded, warnings=warnings)
