# ruff: noqa: RUF001 - punctuation of several scripts
"""Divides text into pieces to speak one after another, also while the text is still being written.

A piece is a sentence. The first one may be a clause, so that its audio begins sooner. A sentence that
is too long is divided at the last clause, or else at the last word, that fits.
"""

import re
from typing import Final

from galley.tts.english import ABBREVIATIONS

LONGEST: Final = 300
"""Most characters of a piece: about 20 seconds of speech."""

_AHEAD: Final = 32
"""Characters after a piece that are searched for what tells that it ends there."""

_SHORTEST_CLAUSE: Final = 12
"""Fewest characters of a clause that is spoken on its own; less sounds cut off."""

_CLOSING: Final = r"\"'”’)\]»"
_SENTENCE: Final = re.compile(rf"(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s)|\n\s*\n|[。！？]")
_CLAUSE: Final = re.compile(rf"[,;:—–][{_CLOSING}]*(?=\s)|[，、；]|\n")
_LAST_WORD: Final = re.compile(r"([^\s]+)\Z")


class Pieces:
    """The pieces of one text, which arrives in parts."""

    def __init__(self, *, clause_first: bool = True) -> None:
        """Begin a text.

        Args:
            clause_first: whether the first piece may be a clause.
        """
        self._text = ""
        self._clause = clause_first

    def feed(self, text: str) -> list[str]:
        """Add text, and return the pieces that are complete."""
        self._text += text
        found, begin = [], 0
        while (end := self._end(begin)) is not None:
            piece, begin = self._text[begin:end].strip(), end
            if is_spoken(piece):
                found.append(piece)
                self._clause = False
        self._text = self._text[begin:]
        return found

    def end(self) -> list[str]:
        """Return the last pieces: the text is complete."""
        found = self.feed("\n\n")
        rest, self._text = self._text.strip(), ""
        return [*found, rest] if is_spoken(rest) else found

    def _end(self, begin: int) -> int | None:
        """Return where the piece that begins at an offset ends; None: it is not complete."""
        length = self._length(self._text[begin : begin + LONGEST + _AHEAD])
        return None if length is None else begin + length

    def _length(self, text: str) -> int | None:
        """Return the length of the piece that a text begins with; None: it is not complete.

        The text is short: a long one without an end, such as "Dr. Dr. Dr.", would be searched again for
        each piece.
        """
        sentence = next((m.end() for m in _SENTENCE.finditer(text) if _ends(text, m)), LONGEST + 1)
        if self._clause:
            for clause in _CLAUSE.finditer(text, 0, min(sentence, LONGEST)):
                if _SHORTEST_CLAUSE <= clause.end() < len(text):
                    return clause.end()
        if sentence <= LONGEST:
            return sentence
        if len(text) <= LONGEST:
            return None
        clauses = [m.end() for m in _CLAUSE.finditer(text, 0, LONGEST)]
        if clauses:
            return clauses[-1]
        space = text.rfind(" ", 1, LONGEST)
        return space if space > 0 else LONGEST


def pieces_of(text: str, *, clause_first: bool = True) -> list[str]:
    """Return the pieces of a complete text."""
    pieces = Pieces(clause_first=clause_first)
    return [*pieces.feed(text), *pieces.end()]


def is_spoken(text: str) -> bool:
    """Return whether there is anything to say: a letter or a digit."""
    return any(character.isalnum() for character in text)


def _ends(text: str, mark: re.Match[str]) -> bool:
    """Return whether a mark ends a sentence, and not an abbreviation, an initial or a numbered item."""
    if mark[0][0] != ".":
        return True
    word = _LAST_WORD.search(text, max(0, mark.start() - 20), mark.start())
    if word is None:
        return True
    before = word[1].lstrip("(\"'“‘[«")
    if before.isdigit() and text[: mark.start()].strip() == before:  # "1. First": a list
        return False
    following = text[mark.end() :].lstrip()[:1]
    if "." in before and not following.isupper():  # "p.m. today"
        return False
    if before.lower() == "no" and following and not following.isdigit():  # "He said no. Then"
        return True
    return not (
        before.lower() in ABBREVIATIONS
        or (len(before) == 1 and before.isalpha() and before.isupper())
    )
