"""Numbers that identify a person or an account, written or spoken.

A number with a checksum is found by it. One without is found by its form (``415-555-0132``) or by the words
before it (:mod:`galley.redact.cues`), so order and invoice numbers stay.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from galley.redact.cues import cue_after, cue_before
from galley.redact.spans import Kind, Span
from galley.redact.tokens import Run, Token, runs

_IBAN_LENGTHS: Final = {
    code: length
    for length, codes in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU XK",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS", 23: "AE GI IL IQ OM TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA",
        30: "JO KW MU", 31: "MT SC", 32: "LC", 33: "RU",
    }.items()
    for code in codes.split()
}  # fmt: skip
"""Country -> length of its account numbers (ISO 13616)."""

_CODE_REACH: Final = 5
"""Tokens between "security code" and the code: three digits are common elsewhere."""

_SSN: Final = re.compile(r"(?<![\d-])(\d{3})-(\d{2})-(\d{4})(?![\d-])")
_PHONE: Final = re.compile(
    r"(?<![\w.-])(?:\+?1[-. ]?)?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[-. ])[2-9]\d{2}[-. ]\d{4}(?![\w-]|\.\d)"
)
_INTERNATIONAL: Final = re.compile(r"(?<![\w+])\+[1-9](?:[-. ()/]{0,2}\d){7,14}(?!\d)")


def luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def is_card(digits: str) -> bool:
    """Return whether a card network issues numbers with this beginning and length, and the check holds."""
    if digits[0] not in "123456":
        return False
    count, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    known = (
        (digits[0] == "4" and count in (13, 16, 19))
        or ((51 <= two <= 55 or 2221 <= four <= 2720) and count == 16)
        or (two in (34, 37) and count == 15)
        or ((four == 6011 or 644 <= three <= 659) and 16 <= count <= 19)
        or ((300 <= three <= 305 or two in (36, 38, 39)) and count == 14)
        or (two == 35 and 16 <= count <= 19)
        or (four in (1800, 2131) and count == 15)
        or (two == 62 and 16 <= count <= 19)
        or (four in (5018, 5020, 5038, 5893, 6304, 6759, 6761, 6762, 6763) and 12 <= count <= 19)
    )
    return known and luhn(digits)


def is_iban(chars: str) -> bool:
    """Return whether this is an account number with its country's length and a valid check (ISO 13616)."""
    if _IBAN_LENGTHS.get(chars[:2]) != len(chars) or not chars[2:4].isdecimal():
        return False
    return int("".join(str(int(char, 36)) for char in chars[4:] + chars[:4])) % 97 == 1


def _is_ssn(digits: str) -> bool:
    """Return whether the Social Security Administration may have issued the number."""
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"


def cards(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield card numbers, and verification codes where words say that they are."""
    for run in runs(tokens):
        cue = cue_before(tokens, run.pieces[0].first)
        for reading in run.readings():
            yield from _checked(reading, tokens, 12, 19, is_card, "card")
        if cue == "card":
            yield from _whole(run, tokens, 12, "card")
        if cue_before(tokens, run.pieces[0].first, _CODE_REACH) == "code":
            yield from _first(run, tokens, 3, 4, "security_code")


def bank_accounts(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield account numbers with a valid check, and others where words say that they are."""
    for run in runs(tokens, letters=True):
        for reading in run.readings():
            yield from _checked(reading, tokens, 15, 34, is_iban, "bank_account")
    for run in runs(tokens):
        if cue_before(tokens, run.pieces[0].first) == "account":
            yield from _whole(run, tokens, 6, "bank_account")


def social_security(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield numbers in the usual form, and nine digits where words say that they are one."""
    for match in _SSN.finditer(text):
        if _is_ssn("".join(match.groups())):
            yield Span("ssn", *match.span())
    for run in runs(tokens):
        if cue_before(tokens, run.pieces[0].first) == "ssn":
            for reading in run.readings():
                yield from _checked(reading, tokens, 9, 9, _is_ssn, "ssn")


def phones(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield numbers in the usual forms, and seven to fifteen digits where words say that they are one."""
    starts = [token.start for token in tokens]
    for form in (_PHONE, _INTERNATIONAL):
        for match in form.finditer(text):
            if cue_before(tokens, bisect_left(starts, match.start())) not in ("other", "card"):
                yield Span("phone", *match.span())
    for run in runs(tokens):
        first, last = run.pieces[0].first, run.pieces[-1].last
        cue = cue_before(tokens, first)
        if cue == "phone" or (cue is None and cue_after(tokens, last) == "phone"):
            yield from _whole(run, tokens, 7, "phone")


def _checked(
    run: Run,
    tokens: Sequence[Token],
    least: int,
    most: int,
    valid: Callable[[str], bool],
    kind: Kind,
) -> Iterator[Span]:
    """Yield the parts of a run that are valid; no two share a piece."""
    free = 0
    for chars, first, last in run.stretches(least, most):
        if first >= free and valid(chars):
            free = last + 1
            yield _span(run, tokens, first, last, kind)


def _whole(run: Run, tokens: Sequence[Token], least: int, kind: Kind) -> Iterator[Span]:
    """Yield a run of ``least`` digits or more as a whole: a recognizer may have added or dropped some."""
    if sum(len(piece.chars) for piece in run.pieces) >= least:
        yield _span(run, tokens, 0, len(run.pieces) - 1, kind)


def _first(run: Run, tokens: Sequence[Token], least: int, most: int, kind: Kind) -> Iterator[Span]:
    """Yield the longest part of ``least`` to ``most`` characters that a run begins with."""
    for _, first, last in run.stretches(least, most):
        if first == 0:
            yield _span(run, tokens, first, last, kind)
        return


def _span(run: Run, tokens: Sequence[Token], first: int, last: int, kind: Kind) -> Span:
    begin, end = run.pieces[first].first, run.pieces[last].last
    return Span(kind, tokens[begin].start, tokens[end].end)
