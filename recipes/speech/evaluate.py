"""Word error rate of the speech model on its held-out sets; transcription is passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import jiwer

from galley.speech.evaluate import plain_text

from . import heldout
from .voices import Samples

Transcribe = Callable[[Sequence[Samples]], Sequence[str]]
"""Takes chunks of 16-kHz samples, gives one transcript for each, in order."""

TARGET: Final = 0.10
"""The word error rate that both sets together may have."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A transcribed item: the number of wrong words, and of all words."""

    item: heldout.Item
    text: str
    wrong: int
    words: int


@dataclass(frozen=True, slots=True)
class SetScore:
    """Errors and words of one set."""

    set: int
    wrong: int
    words: int

    @property
    def wer(self) -> float:
        """Return substituted, inserted and missing words per spoken word."""
        return self.wrong / self.words


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of each set, and every item."""

    scores: tuple[SetScore, ...]
    heard: tuple[Heard, ...]

    @property
    def wer(self) -> float:
        """Return the error rate over all sets."""
        return sum(s.wrong for s in self.scores) / sum(s.words for s in self.scores)

    @property
    def passed(self) -> bool:
        """Return whether the rate is within the target."""
        return self.wer <= TARGET


def wrong_words(said: str, heard: str) -> tuple[int, int]:
    """Count substituted, inserted and missing words of a transcript, and the spoken words.

    Words are those of `galley eval speech`: no case, no punctuation; one wrong digit makes a number wrong.
    """
    result = jiwer.process_words(plain_text(said), plain_text(heard))
    wrong = result.substitutions + result.insertions + result.deletions
    return wrong, result.hits + result.substitutions + result.deletions


def evaluate(
    transcribe: Transcribe, sets: Sequence[int] = heldout.SETS, *, first: int = heldout.ITEMS
) -> Evaluation:
    """Synthesize the `first` items of the sets, have them transcribed and count the errors.

    Raises:
        SettingsError: espeak-ng is missing.
        ValueError: `transcribe` returned another number of texts than it was given chunks.
    """
    scores: list[SetScore] = []
    heard: list[Heard] = []
    for number in sets:
        items = heldout.read(number)[:first]
        texts = transcribe([heldout.sound(item) for item in items])
        if len(texts) != len(items):
            raise ValueError(f"gave {len(items)} chunks, got {len(texts)} transcripts")
        of_set = [
            Heard(item, text, *wrong_words(item.text, text))
            for item, text in zip(items, texts, strict=True)
        ]
        heard += of_set
        wrong, said = sum(one.wrong for one in of_set), sum(one.words for one in of_set)
        scores.append(SetScore(number, wrong, said))
    return Evaluation(tuple(scores), tuple(heard))
