"""What a drafter is: a model that guesses for several sequences at once, by steps that cost time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from galley.speculation.row_costs import RowCosts

S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)

SPREAD_TOKENS: Final = 128
"""What catching up with a sequence takes is spread over its tokens to come, at most over so many."""


@dataclass(slots=True, frozen=True)
class Wanted(Generic[S_co]):
    """``length`` guesses of what follows a sequence."""

    sequence: S_co
    length: int


class Drafter(Protocol[S_contra]):
    """Of one engine.

    Attributes:
        costs: of its own steps by rows.
        seconds: spent on drafting so far.
    """

    costs: RowCosts
    seconds: float

    def backlog(self, sequence: S_contra) -> int:
        """How many rows are to be computed before the first guess, at least 1; 0: it cannot guess here."""

    def draft(self, wanted: Sequence[Wanted[S_contra]]) -> list[Sequence[int]]:
        """The guesses, fewer than wanted or none where there is no room, or too much to catch up with."""


@dataclass(slots=True, frozen=True)
class Candidate:
    """A sequence that may be drafted for.

    Attributes:
        probability: that a guess is right if all before it are.
        room: tokens that it may still get.
        backlog: as :meth:`Drafter.backlog` says.
    """

    probability: float
    room: int
    backlog: int


def draft_length(
    candidates: Sequence[Candidate],
    drafts: RowCosts,
    verifies: RowCosts,
    *,
    decoding: int,
    rows: int,
    most: int,
) -> tuple[int, float]:
    """How many guesses for each candidate make the most tokens a second, and how many these are.

    A backlog is computed once, for all tokens that its sequence may still get; a step bears its part.

    Args:
        candidates: at least one.
        drafts: what steps of the drafter take.
        verifies: what steps of the engine take.
        decoding: sequences that get a token in the step.
        rows: of the step so far.
        most: guesses for one sequence.
    """
    behind = sum((one.backlog - 1) / min(one.room, SPREAD_TOKENS) for one in candidates)
    row = max(0.0, drafts.seconds(64) - drafts.seconds(32)) / 32
    step = drafts.plain(len(candidates))
    best, chosen, guesses, expected = 0.0, 0, 0, float(decoding)
    for length in range(1, most + 1):
        longer = [one for one in candidates if one.room >= length]
        guesses += len(longer)
        expected += sum(one.probability**length for one in longer)
        drafting = step * length + row * behind * expected / decoding
        pace = expected / (verifies.guessed(decoding, rows, guesses) + drafting)
        if pace > best:
            best, chosen = pace, length
    return chosen, best
