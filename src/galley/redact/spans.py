"""Spans of a text to redact, and their kinds."""

from typing import Final, Literal, NamedTuple, get_args

Kind = Literal[
    "card",
    "security_code",
    "bank_account",
    "ssn",
    "phone",
    "email",
    "date_of_birth",
    "address",
    "name",
]
"""Payment card number (Luhn); card verification code; IBAN, account or routing number; US social security
number; telephone number; e-mail address; date of birth; postal address; a person's name."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class Span(NamedTuple):
    """The characters ``start`` to ``end`` (exclusive) of a text."""

    kind: Kind
    start: int
    end: int


def label(kind: Kind) -> str:
    """Return the text that replaces a span of this kind, such as ``[CARD]``."""
    return f"[{kind.upper()}]"


def words(text: str) -> tuple[str, ...]:
    """Return the words of a table that is written as one text."""
    return tuple(text.split())
