"""How much silence ends a turn, given how likely it is that the turn is over: ``semantic_vad``."""

import math
from typing import Final, Literal, NamedTuple, TypeAlias

Eagerness: TypeAlias = Literal["low", "medium", "high", "auto"]

UNSURE_MS: Final = 200
"""Silence for a probability just below the one that is enough; it doubles with each factor of ten below."""


class _Eagerness(NamedTuple):
    """Attributes: the probability at which a turn ends at once; and the silence that always ends it."""

    enough: float
    longest_ms: int


_MEDIUM: Final = _Eagerness(0.01, 4_000)
_LEVELS: Final[dict[Eagerness, _Eagerness]] = {
    "low": _Eagerness(0.1, 8_000),
    "medium": _MEDIUM,
    "auto": _MEDIUM,
    "high": _Eagerness(0.001, 2_000),
}
"""The longest silences are those of OpenAI's API.

The probabilities are small, since a sentence may almost always be followed by another one: a language
model gives most whole messages of people some hundredths, and a message cut between words less than 0.001.
"""


DEFAULT_SILENCE_MS: Final = 1_000
"""Silence that ends a turn of which it is not known how likely its end is."""


def longest_silence_ms(eagerness: Eagerness) -> int:
    """Return the silence that ends a turn, however unlikely its end is."""
    return _LEVELS[eagerness].longest_ms


def silence_ms(probability: float, eagerness: Eagerness) -> int:
    """Return the silence that ends a turn which is over with a probability; 0: it ends at once."""
    level = _LEVELS[eagerness]
    if probability >= level.enough:
        return 0
    if probability <= 0.0:
        return level.longest_ms
    doublings = min(20.0, math.log10(level.enough / probability))
    return min(level.longest_ms, round(UNSURE_MS * math.exp2(doublings)))
