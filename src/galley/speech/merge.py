"""Joins the words of two chunks whose audio overlaps, so that no word is lost or doubled."""

import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

from galley.speech.results import Word

_FAR_SECONDS: Final = 1.0
"""Seconds from which equal words are different spoken words; word times are rarely off by more."""


class Join(NamedTuple):
    """How many words of the left chunk to keep, and how many of the right chunk to skip."""

    keep_left: int
    skip_right: int


def join(left: Sequence[Word], right: Sequence[Word], overlap: tuple[float, float]) -> Join:
    """Find where to switch from the left chunk's words to the right chunk's.

    The words of the overlap are aligned by longest common subsequence, weighted by how close in time two
    equal words are. The switch is after the aligned pair nearest to the middle of the overlap, because each
    chunk has more context on its own side of the middle; words cut in half at a chunk's end are dropped.
    Without aligned words, the switch is at the middle in time.

    Args:
        left, right: words in order, with times in the recording that may be imprecise.
        overlap: (start, end) of the audio that both chunks contain, in seconds of the recording.
    """
    middle = sum(overlap) / 2
    first = next(
        (i for i, word in enumerate(left) if word.end > overlap[0] - _FAR_SECONDS), len(left)
    )
    last = sum(word.start < overlap[1] + _FAR_SECONDS for word in right)
    if first == len(left) or last == 0:
        return Join(len(left), 0)
    pairs = _aligned(left[first:], right[:last])
    if not pairs:
        return Join(
            sum(_center(word) < middle for word in left),
            sum(_center(word) < middle for word in right),
        )
    kept, skipped = min(pairs, key=lambda pair: abs(_center(left[first + pair[0]]) - middle))
    return Join(first + kept + 1, skipped + 1)


def _aligned(left: Sequence[Word], right: Sequence[Word]) -> list[tuple[int, int]]:
    """Return the pairs (index in left, index in right) of the best-scoring alignment, in order."""
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    worth = [[_worth(one, other) for other in right] for one in left]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            both = worth[i][j] and worth[i][j] + best[i + 1][j + 1]
            best[i][j] = max(both, best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if worth[i][j] and best[i][j] == worth[i][j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _worth(one: Word, other: Word) -> float:
    """Return 1 for the same word at the same time, down to 0 for different or too distant words."""
    if plain(one.text) != plain(other.text):
        return 0.0
    return max(0.0, 1.0 - abs(_center(one) - _center(other)) / _FAR_SECONDS)


def plain(text: str) -> str:
    """Return a word without case, spaces and punctuation; punctuation without letters stays as it is."""
    letters = "".join(
        character
        for character in text.casefold()
        if unicodedata.category(character)[0] not in "PZC"
    )
    return letters or text.strip()


def _center(word: Word) -> float:
    return (word.start + word.end) / 2
