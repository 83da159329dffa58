"""Dates of birth, found by the words before them."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from galley.redact.spans import Span
from galley.redact.tokens import Token

_MONTHS: Final = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)
_ORDINALS: Final = (
    "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth"
    "|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|twentieth|thirtieth"
    "|twenty[- ](?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)|thirty[- ]first"
)
_NUMBER: Final = (
    "(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    "|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|oh|o|zero|hundred"
    "|thousand|and)"
)
_DAY: Final = rf"(?:\d{{1,2}}(?:st|nd|rd|th)?|{_ORDINALS})"
_YEAR: Final = rf"(?:(?:19|20)\d{{2}}|'\d{{2}}|{_NUMBER}(?:[- ]{_NUMBER}){{1,4}})"
_DATE: Final = re.compile(
    rf"\b(?:\d{{1,2}}[/.-]\d{{1,2}}[/.-](?:\d{{4}}|\d{{2}})|(?:19|20)\d{{2}}[/.-]\d{{1,2}}[/.-]\d{{1,2}}"
    rf"|(?:{_MONTHS})\.?,? (?:the )?{_DAY}(?:,? (?:of )?{_YEAR})?"
    rf"|(?:the )?{_DAY} (?:of )?(?:{_MONTHS})\.?(?:,? {_YEAR})?)(?!\w)",
    re.IGNORECASE,
)
_BIRTH: Final = re.compile(
    r"\b(?:born|birth|birthday|birthdate|birth date|d\.?o\.?b\.?)\b", re.IGNORECASE
)
_BIRTH_REACH: Final = 120
"""Characters before a date in which a word about birth counts."""


def birth_dates(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield dates shortly after a word about birth."""
    for cue in _BIRTH.finditer(text):
        match = _DATE.search(text, cue.end(), cue.end() + _BIRTH_REACH)
        if match is not None:
            yield Span("date_of_birth", *match.span())
