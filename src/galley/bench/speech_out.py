"""How soon a voice begins to speak a sentence, and how fast it continues."""

import time
from dataclasses import dataclass
from typing import Final

from galley.bench.report import Spread
from galley.llm.speaker import Speaker

SENTENCE: Final = (
    "The committee agreed to publish the final report next week after all members have read it and sent "
    "their comments back."
)
"""A sentence of twenty words without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOut:
    """Figures of one sentence.

    Attributes:
        words: the sentence's words.
        audio_seconds: length of its audio.
        first_audio_seconds: from the text to the first samples.
        real_time_factor: time to speak it, divided by the length of its audio.
    """

    words: int
    audio_seconds: Spread
    first_audio_seconds: Spread
    real_time_factor: Spread


def bench_speech_out(speaker: Speaker, text: str, repeats: int) -> SpeechOut:
    """Measure a sentence, after it has been spoken once.

    Raises:
        RequestError: the voice cannot speak it.
    """
    audio, first, factor = [], [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        waited, size = 0.0, 0
        for samples in speaker.speak(text):
            waited = waited or time.perf_counter() - began
            size += len(samples)
        seconds = size / 2 / speaker.sample_rate
        audio.append(seconds)
        first.append(waited)
        factor.append((time.perf_counter() - began) / seconds)
    return SpeechOut(
        words=len(text.split()),
        audio_seconds=Spread.of(audio[1:]),
        first_audio_seconds=Spread.of(first[1:]),
        real_time_factor=Spread.of(factor[1:]),
    )
