"""Stems of English words, and which stems are opposites, or the same action or thing."""

from collections.abc import Iterable
from typing import Final

from galley.cache.fact_words import ACTIONS, OPPOSITES, THINGS


def stem(word: str) -> str:
    """Return a word without the commonest endings, so that "returned" is "return"."""
    word = word.removesuffix("'s")
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4), ("e", 4)):
        if word.endswith(ending) and len(word) >= least and not word.endswith("ss"):
            cut = word[: -len(ending)] + ("y" if ending == "ies" else "")
            return _single(cut).removesuffix("e") if len(cut) > 3 else cut
    return _single(word)


def _single(word: str) -> str:
    """Return a word without the second of two equal letters at its end."""
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def _opposites() -> dict[str, set[str]]:
    """Return stem -> the stems of the words that are its opposites."""
    found: dict[str, set[str]] = {}
    for first, second in OPPOSITES:
        found.setdefault(stem(first), set()).add(stem(second))
        found.setdefault(stem(second), set()).add(stem(first))
    return found


OPPOSITE_OF: Final = _opposites()


def _alike(groups: Iterable[frozenset[str]]) -> dict[str, set[str]]:
    """Return stem of a word -> the stems that may mean the same, itself included."""
    found: dict[str, set[str]] = {}
    for group in groups:
        stems = {stem(word) for word in group}
        for one in stems:
            found.setdefault(one, set()).update(stems)
    return found


SAME_ACTIONS: Final = _alike(ACTIONS)
SAME_THINGS: Final = _alike(THINGS)
