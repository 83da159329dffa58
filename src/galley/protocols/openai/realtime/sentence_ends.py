"""What a recognizer's punctuation says about the end of a turn."""

from typing import Final

_MARKS: Final = tuple(".?!\u3002\uff1f\uff01\u061f\u06d4\u0964")
"""Also those of Chinese and Japanese, Arabic, Urdu and Hindi."""
_CLOSING: Final = "\"')]\u201d\u2019\u00bb\u300d\u300f"
"""Quotes and brackets that may follow a mark."""
_TRAILS_OFF: Final = ("...", "\u2026")
_MARKED: Final = 3.0
_UNMARKED: Final = 0.1
"""Factors of a turn's probability of being over, if its transcript ends with a mark, and if it does not.

A recognizer hears from the intonation whether a sentence ends; a language model only reads the words.
"""
_PATIENCE: Final = 3
"""Whole turns without any mark after which the recognizer is taken for one that writes none."""


class SentenceEnds:
    """Weighs the ends of one conversation's turns."""

    def __init__(self) -> None:
        self._without = 0
        """Whole turns since the last one with a mark."""

    def take(self, text: str) -> None:
        """Learn from the transcript of a whole turn."""
        self._without = 0 if any(mark in text for mark in _MARKS) else self._without + 1

    def weighed(self, probability: float, text: str) -> float:
        """Return a language model's probability that a turn is over, with the transcript's last mark.

        Args:
            probability: from 0 to 1.
            text: the turn's transcript so far.
        """
        if self._without >= _PATIENCE:
            return probability
        text = text.rstrip().rstrip(_CLOSING)
        marked = text.endswith(_MARKS) and not text.endswith(_TRAILS_OFF)
        return min(1.0, probability * (_MARKED if marked else _UNMARKED))
