"""Words, numbers and marks of a text, and the runs of digits and letters that they spell."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from galley.redact.spans import words

_TOKEN: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?|\d+|[^\w\s]|_|\n")

_UNITS: Final = {
    word: str(value)
    for value, word in enumerate(words("zero one two three four five six seven eight nine"))
} | {"nought": "0"}
_TEENS: Final = {
    word: str(value)
    for value, word in enumerate(
        words("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"),
        start=10,
    )
}
_TENS: Final = {
    word: value
    for value, word in enumerate(
        words("twenty thirty forty fifty sixty seventy eighty ninety"), start=2
    )
}
_TIMES: Final = {"double": 2, "triple": 3, "treble": 3}
_SCALES: Final = {"hundred": "00", "thousand": "000"}
_ZEROS: Final = frozenset({"o", "oh"})
"""Read as zero next to other digits only."""

_MARKS: Final = frozenset("-\u2013\u2014.,/()+ #:")
_FILLERS: Final = frozenset(
    words(
        "uh um er and then dash hyphen space okay ok yes yeah yep right mhm huh got it go ahead next "
        "alright sure thanks perfect continue"
    )
)
"""Words between the digits of one number: hesitation, and acknowledgments by the other speaker."""

_MOST_FILLERS: Final = 6
_SPELLED: Final = re.compile(r"[A-Z]{2,4}\Z")


class Token(NamedTuple):
    """A word, a number, a mark or a line break, at ``start`` to ``end`` of the text."""

    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The token in lower case, with a plain apostrophe."""
        return self.text.lower().replace("\u2019", "'")


class Piece(NamedTuple):
    """Digits or letters spelled by the tokens ``first`` to ``last`` (inclusive).

    Attributes:
        tens: whether it is a word such as "thirty", which may lack its unit.
    """

    chars: str
    first: int
    last: int
    tens: bool = False


@dataclass
class Run:
    """Consecutive pieces that may spell one number, in the order of the text."""

    pieces: list[Piece] = field(default_factory=list)

    def readings(self) -> "Iterator[Run]":
        """Yield the run, and another reading if something stands between the words of one number.

        In "thirty, go ahead, nine" the digits may be 30 and 9, or 39.
        """
        yield self
        pieces: list[Piece] = []
        for piece in self.pieces:
            before = pieces[-1] if pieces else None
            if (
                before is not None
                and before.tens
                and len(piece.chars) == 1
                and piece.chars in "123456789"
            ):
                pieces[-1] = Piece(before.chars[0] + piece.chars, before.first, piece.last)
            else:
                pieces.append(piece)
        if len(pieces) < len(self.pieces):
            yield Run(pieces)

    def stretches(self, least: int, most: int) -> Iterator[tuple[str, int, int]]:
        """Yield (characters, first piece, last piece) of each part of ``least`` to ``most`` characters.

        Parts begin and end with whole pieces. Longer ones come before shorter ones of the same beginning.
        """
        for first in range(len(self.pieces)):
            chars, found = "", []
            for last in range(first, len(self.pieces)):
                chars += self.pieces[last].chars
                if len(chars) > most:
                    break
                if len(chars) >= least:
                    found.append((chars, first, last))
            yield from reversed(found)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a text; white space other than line breaks is none."""
    return [Token(match[0], *match.span()) for match in _TOKEN.finditer(text)]


def runs(tokens: Sequence[Token], *, letters: bool = False) -> list[Run]:
    """Return the runs of digits in a text, written or spoken in English.

    Args:
        tokens: the text's tokens.
        letters: whether single letters, as they are spelled out, and groups of capitals count, too.
    """
    found: list[Run] = []
    run = Run()
    fillers = index = 0
    while index < len(tokens):
        piece = _piece(tokens, index, run, letters=letters)
        if piece is not None:
            run.pieces.append(piece)
            index, fillers = piece.last + 1, 0
            continue
        if run.pieces:
            word = tokens[index].word
            fillers += word in _FILLERS
            between = word in _FILLERS or word in _MARKS or word == "\n"
            if not between or fillers > _MOST_FILLERS:
                found.append(run)
                run, fillers = Run(), 0
        index += 1
    if run.pieces:
        found.append(run)
    return found


def _piece(tokens: Sequence[Token], at: int, run: Run, *, letters: bool) -> Piece | None:
    """Return the piece that begins with a token; None if it spells no digits or letters."""
    word = tokens[at].word
    if word.isdecimal() and word.isascii():
        return Piece(word, at, at)
    if (times := _TIMES.get(word)) and at + 1 < len(tokens):
        digit = _one_digit(tokens[at + 1].word)
        return Piece(digit * times, at, at + 1) if digit else None
    if word in _TENS:
        following = _skip_hyphen(tokens, at + 1)
        unit = _UNITS.get(tokens[following].word, "0") if following < len(tokens) else "0"
        if unit != "0":
            return Piece(f"{_TENS[word]}{unit}", at, following)
        return Piece(f"{_TENS[word]}0", at, at, tens=True)
    if chars := _UNITS.get(word) or _TEENS.get(word):
        return Piece(chars, at, at)
    if word in _SCALES and run.pieces and run.pieces[-1].last == at - 1:
        return Piece(_SCALES[word], at, at)
    after_letter = bool(run.pieces) and run.pieces[-1].chars.isalpha()
    is_letter = letters and word == "o" and (tokens[at].text == "O" or after_letter)
    if word in _ZEROS and not is_letter and _next_to_digits(tokens, at, run):
        return Piece("0", at, at)
    return _letters(tokens, at) if letters else None


def _letters(tokens: Sequence[Token], at: int) -> Piece | None:
    """Return letters that are spelled out ("d", "D as in David") or written as capitals of a code."""
    text = tokens[at].text
    if len(text) == 1 and text.isalpha() and text.isascii():
        phrase = [token.word for token in tokens[at + 1 : at + 4]]
        explained = (
            len(phrase) == 3
            and phrase[:2] in (["as", "in"], ["like", "in"])
            and phrase[2].startswith(text.lower())
        )
        return Piece(text.upper(), at, at + 3 if explained else at)
    return Piece(text, at, at) if _SPELLED.match(text) else None


def _one_digit(word: str) -> str | None:
    if word in _ZEROS:
        return "0"
    return word if len(word) == 1 and word.isdecimal() else _UNITS.get(word)


def _skip_hyphen(tokens: Sequence[Token], at: int) -> int:
    return at + 1 if at < len(tokens) and tokens[at].text == "-" else at


def _next_to_digits(tokens: Sequence[Token], at: int, run: Run) -> bool:
    if run.pieces and run.pieces[-1].last >= at - 2:
        return True
    following = tokens[at + 1].word if at + 1 < len(tokens) else ""
    return _one_digit(following) is not None or following in _TIMES or following in _TENS
