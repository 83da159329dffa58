"""The interface of a drafter, a model that drafts for several sequences at once in steps that take time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from galley.speculation.row_costs import RowCosts

S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)

SPREAD_TOKENS: Final = 128
"""The cost of catching up with a sequence is spread over at most this many future tokens."""


@dataclass(slots=True, frozen=True)
class Wanted(Generic[S_co]):
    """A request for ``length`` draft tokens that follow a sequence."""

    sequence: S_co
    length: int


class Drafter(Protocol[S_contra]):
    """The drafter of one engine.

    Attributes:
        costs: times of its steps by rows.
        seconds: time spent on drafting so far.
    """

    costs: RowCosts
    seconds: float

    def backlog(self, sequence: S_contra) -> int:
        """Return the rows to compute before the first draft token, at least 1; 0 if it cannot draft."""

    def draft(self, wanted: Sequence[Wanted[S_contra]]) -> list[Sequence[int]]:
        """Return draft tokens; fewer than wanted or none without room, or with too large a backlog."""


@dataclass(slots=True, frozen=True)
class Candidate:
    """A sequence that may be drafted for.

    Attributes:
        probability: probability that a draft token is accepted if all before it are.
        room: number of tokens that the sequence may still get.
        backlog: the value of :meth:`Drafter.backlog`.
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
    """Return (draft tokens per candidate that maximize tokens per second, the resulting tokens per second).

    A backlog is computed once, for all tokens that its sequence may still get; a step bears its share.

    Args:
        candidates: at least one.
        drafts: times of the drafter's steps.
        verifies: times of the engine's steps.
        decoding: number of sequences that get a token in the step.
        rows: rows of the step so far.
        most: maximum number of draft tokens for one sequence.
    """
    behind = sum((one.backlog - 1) / min(one.room, SPREAD_TOKENS) for one in candidates)
    row = max(0.0, drafts.seconds(64) - drafts.seconds(32)) / 32
    step = drafts.plain(len(candidates))
    best, chosen, draft_tokens, expected = 0.0, 0, 0, float(decoding)
    for length in range(1, most + 1):
        longer = [one for one in candidates if one.room >= length]
        draft_tokens += len(longer)
        expected += sum(one.probability**length for one in longer)
        drafting = step * length + row * behind * expected / decoding
        pace = expected / (verifies.with_drafts(decoding, rows, draft_tokens) + drafting)
        if pace > best:
            best, chosen = pace, length
    return chosen, best
