"""All spans of a text."""

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Final

from galley.redact.births import birth_dates
from galley.redact.contact import addresses, emails
from galley.redact.names import name_words, names
from galley.redact.numbers import bank_accounts, cards, phones, social_security
from galley.redact.spans import KINDS, Kind, Span
from galley.redact.tokens import Token, tokenize

_FINDERS: Final[dict[Kind, Callable[[str, Sequence[Token]], Iterator[Span]]]] = {
    "card": cards,
    "security_code": cards,
    "bank_account": bank_accounts,
    "ssn": social_security,
    "phone": phones,
    "email": emails,
    "date_of_birth": birth_dates,
    "address": addresses,
    "name": names,
}


def find_spans(
    text: str, kinds: Collection[Kind] = KINDS, known_names: Set[str] = frozenset()
) -> list[Span]:
    """Return the spans of ``kinds`` in a text, in order; no two overlap.

    Takes time in proportion to the text's length. Lines are turns of speakers: a number may continue in a
    later line. Where spans overlap, they become one of the kind that comes first in :data:`KINDS`.

    Args:
        text: the text to search.
        kinds: the kinds of spans to find.
        known_names: words that are names wherever they occur, in addition to those found here.
    """
    tokens = tokenize(text)
    finders = dict.fromkeys(_FINDERS[kind] for kind in KINDS if kind in kinds)
    found = [span for finder in finders for span in finder(text, tokens) if span.kind in kinds]
    if "name" in kinds:
        found += name_words(tokens, known_names)
    merged: list[Span] = []
    for span in sorted(found, key=lambda span: span.start):
        if merged and span.start < merged[-1].end:
            before = merged.pop()
            kind = min(before.kind, span.kind, key=KINDS.index)
            span = Span(kind, before.start, max(before.end, span.end))
        merged.append(span)
    return merged
