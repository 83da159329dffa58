"""What competing tenants hold of the seats and blocks, compared with their shares by weight.

A seat is a place among the running sequences, of which there are ``max_running``.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from galley.engine.fair_share import FairShare
from galley.engine.sequence import Sequence

Resource: TypeAlias = tuple[Callable[[Sequence], int], int]
"""A function that returns how much of the resource a sequence holds, and the resource's capacity."""


def seats_of(sequence: Sequence) -> int:
    """Return the seats that a sequence takes: one for each hypothesis."""
    return sequence.task.seats


def tokens_of(sequence: Sequence) -> int:
    """Return the tokens whose blocks a sequence takes."""
    return len(sequence.tokens)


class Holdings:
    """The resources that sequences compete for.

    Attributes:
        seats: the seats of running sequences.
        tokens: the tokens that the blocks can hold.
    """

    def __init__(self, fair: FairShare, *, seats: int, tokens: int) -> None:
        """Create it; ``seats`` and ``tokens`` are the capacities."""
        self._fair = fair
        self.seats: Final[Resource] = (seats_of, seats)
        self.tokens: Final[Resource] = (tokens_of, tokens)

    def within_share(self, newcomer: Sequence, running: Iterable[Sequence]) -> bool:
        """Return whether the tenant has nothing yet, or would stay within its share of all resources."""
        tenant = newcomer.request.tenant
        share = self._fair.share(tenant)
        own = [sequence for sequence in running if sequence.request.tenant == tenant]
        for holds, capacity in (self.seats, self.tokens):
            held = sum(map(holds, own))
            if held and held + holds(newcomer) > share * capacity:
                return False
        return True

    def may_lose(self, victim: Sequence, resource: Resource, running: Iterable[Sequence]) -> bool:
        """Return whether the victim's tenant would keep its share of the resource.

        A tenant never gives up so much that it could reclaim it, so nothing oscillates.
        """
        holds, capacity = resource
        tenant = victim.request.tenant
        held = sum(holds(s) for s in running if s.request.tenant == tenant)
        return held - holds(victim) >= self._fair.share(tenant) * capacity


def worst(
    candidates: Iterable[Sequence],
    running: Iterable[Sequence],
    holds: Callable[[Sequence], int] = tokens_of,
) -> Sequence:
    """Return the last in order of the tenant that holds the most in proportion to its weight.

    Args:
        candidates: at least one; all of them are running.
        running: the sequences that hold something.
        holds: how much of the resource a sequence holds.
    """
    held: dict[str, float] = {}
    for sequence in running:
        request = sequence.request
        held[request.tenant] = held.get(request.tenant, 0.0) + holds(sequence) / request.weight
    return max(candidates, key=lambda s: (held[s.request.tenant], s.order, s.number))
