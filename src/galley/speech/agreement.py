"""LocalAgreement-2 (arXiv:2307.14743): words that two consecutive partial transcripts agree on are final.

Both transcripts are of the same utterance, whose audio grows. The decoder gets the final text as a prefix,
so every transcript begins with that text, and final text is never retracted.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final

from galley.speech.languages import UNSPACED

_WORD: Final = re.compile(r"\s*\w+|\s*[^\w\s]+")
_CHARACTER: Final = re.compile(r"\s*\S")


class LocalAgreement:
    """The text of one utterance's audio.

    Attributes:
        final: text that will not change.
        interim: the last transcript's text after ``final``.
    """

    def __init__(self, final: str = "") -> None:
        """Start with ``final``, the text that the audio is known to begin with."""
        self.final = final
        self.interim = ""

    def update(self, text: str, language: str) -> str:
        """Process the next partial transcript and return the text that becomes final.

        Punctuation at the end of either transcript does not become final: a full stop may become a comma.

        Args:
            text: the transcript, which begins with ``final``.
            language: language code; determines how text is split into words.
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

    def finish(self, text: str) -> str:
        """Process the last transcript, all of which is final, and return the text after ``final``."""
        rest = text[len(self.final) :].rstrip()
        self.final += rest
        self.interim = ""
        return rest

    def reject(self) -> None:
        """Skip a missing transcript: the one after it has no transcript to agree with."""
        self.interim = ""


def split(text: str, language: str) -> list[str]:
    """Split text into words and punctuation marks, each with the spaces before it.

    Text in a language that is written without spaces is split into characters.
    """
    pattern = _CHARACTER if language in UNSPACED else _WORD
    return pattern.findall(text)


def separator(language: str) -> str:
    """Return the separator between two utterances' texts: a space if the language uses spaces."""
    return "" if language in UNSPACED else " "


def align_head(head: Sequence[str], final: Sequence[str]) -> tuple[int, int]:
    """Find where the head of an utterance ends in the utterance's final text.

    The head was transcribed again on its own, so the two texts may differ in some words. Of all prefixes,
    those with the smallest edit distance are taken as the same speech.

    Args:
        head: words of the head's transcript.
        final: words that were already final.

    Returns:
        ``(n, m)``: ``final[:n]`` and ``head[:m]`` are the same speech; n is all of ``final`` or m is all of
        ``head``.
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
