"""LocalAgreement-2 (arXiv:2307.14743): what two transcripts in a row say of a growing window is final.

Each transcript goes on from what is final already, because the decoder is given that; so it only grows.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final

from galley.speech.languages import UNSPACED

_WORD: Final = re.compile(r"\s*\w+|\s*[^\w\s]+")
_CHARACTER: Final = re.compile(r"\s*\S")


class Agreement:
    """The transcripts of one window.

    Attributes:
        final: text that will stay.
        interim: what the last transcript has beyond it.
    """

    def __init__(self, final: str = "") -> None:
        """``final`` is what the window is known to begin with."""
        self.final = final
        self.interim = ""

    def hear(self, text: str, language: str) -> str:
        """A transcript that begins with ``final``; what has become final by it.

        Marks at the end of either transcript are left open: a full stop may become a comma.
        """
        before, now = (split(tail, language) for tail in (self.interim, text[len(self.final) :]))
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False))
        common = len(list(pairs))
        if common and common in (len(before), len(now)) and not _is_word(now[common - 1]):
            common -= 1
        agreed = "".join(now[:common])
        self.final += agreed
        self.interim = "".join(now[common:])
        return agreed

    def close(self, text: str) -> str:
        """The last transcript, which is final; what has become final by it."""
        rest = text[len(self.final) :].rstrip()
        self.final += rest
        self.interim = ""
        return rest

    def doubt(self) -> None:
        """The last transcript was not good: the next one has nothing to agree with."""
        self.interim = ""


def split(text: str, language: str) -> list[str]:
    """Words and marks, with the spaces before them; in a language without spaces, characters."""
    pattern = _CHARACTER if language in UNSPACED else _WORD
    return pattern.findall(text)


def separator(language: str) -> str:
    """What parts two windows' texts."""
    return "" if language in UNSPACED else " "


def heard_in(head: Sequence[str], final: Sequence[str]) -> tuple[int, int]:
    """Where a window's head ends in the window's text.

    The head was transcribed for itself, so the two may differ in a word here and there: of all ways to say
    where one ends in the other, that with the least edit distance is taken.

    Args:
        head: words of the head.
        final: words of the window.

    Returns:
        ``(n, m)``: ``final[:n]`` and ``head[:m]`` are the same speech; all of one or the other is.
    """
    rows = [list(range(len(final) + 1))]
    for i, word in enumerate(head, start=1):
        row = [i]
        for j, other in enumerate(final, start=1):
            change = rows[-1][j - 1] + (_plain(word) != _plain(other))
            row.append(min(change, row[-1] + 1, rows[-1][j] + 1))
        rows.append(row)
    ends = [(len(head), j) for j in range(len(final) + 1)]
    ends += [(i, len(final)) for i in range(len(head))]
    m, n = min(ends, key=lambda end: (rows[end[0]][end[1]], -sum(end)))
    return n, m


def _is_word(piece: str) -> bool:
    return piece.strip()[:1].isalnum()


def _plain(piece: str) -> str:
    return piece.strip().casefold()
