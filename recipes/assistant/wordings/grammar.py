"""Callers' sentences as clauses of a small grammar.

`[a|b|]` means one of the alternatives (the last one here is empty; alternatives may nest);
`{slot}` is filled by the generator. A clause is a sentence without its capital and full stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

Clauses = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wordings:
    """One complete, self-consistent set of clauses for callers' messages."""

    greeting: Clauses
    name: Clauses
    account: Clauses
    name_account: Clauses
    problem: dict[str, Clauses]
    amount: dict[str, Clauses]
    date: dict[str, Clauses]
    urgency: dict[str, Clauses]
    chatter: Clauses
    closing: Clauses
    redact: Clauses


def clauses_of(wordings: Wordings) -> Iterator[str]:
    """Every clause template of a set of wordings."""
    for spec in fields(Wordings):
        group = getattr(wordings, spec.name)
        for options in group.values() if isinstance(group, dict) else (group,):
            yield from options
