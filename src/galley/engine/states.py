"""Slots for the states of recurrent layers: of running requests, and kept ones that others go on from.

A state belongs to all tokens before it and cannot be taken back. A request owns a slot for its present
state; the states that it has after every so many tokens are kept in slots of their own, as far as there are
any, and found again by the hash of these tokens. A state that is kept is never written again: who goes on
from it reads it in its next step, and writes its own slot.

    tokens   0 ........ 128 ........ 256 ... 300 of a prompt, in one step, kept every 128
    slots    -1          7            2       5      read (none), two kept, the request's own
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from galley.engine.block_hashes import HashChain
from galley.engine.blocks import BlockPool
from galley.types import BLOCK_TOKENS


@dataclass(slots=True)
class _Place:
    """Where a running request's state is.

    Attributes:
        own: the slot that its steps write.
        read: the slot of a kept state that its next step goes on from; None: from ``own``.
    """

    own: int
    read: int | None


class StateCache:
    """Slots by request id. Every change keeps ``free + cached + used == total`` of the pool.

    Slots are given back as soon as a step is planned whose rows are the last to read them, so another
    sequence of that step may write them: executors go through the sequences of a batch in order.

    Args:
        slots: that there are; at least 2.
        interval: tokens from one kept state to the next, whole blocks; 0 keeps none.

    Attributes:
        pool: of slots.
    """

    def __init__(self, slots: int, *, interval: int) -> None:
        assert slots >= 2
        assert interval % BLOCK_TOKENS == 0
        self.pool = BlockPool(slots)
        self._interval = interval
        self._places: dict[str, _Place] = {}

    def longest(self, links: Sequence[bytes]) -> int:
        """Of blocks with these hashes, how many have a kept state behind them, or 0."""
        return next((n for n in range(len(links), 0, -1) if self.find(links[n - 1]) is not None), 0)

    def find(self, link: bytes) -> int | None:
        """The slot of the state behind the block with this hash."""
        return self.pool.find(link)

    def can_open(self, found: int | None) -> bool:
        """Whether there is a slot for one more request, which goes on from the kept state ``found``."""
        return self.pool.can_take(1, () if found is None else (found,))

    def open(self, request_id: str, found: int | None) -> None:
        """A request begins, or goes on from a kept state."""
        assert request_id not in self._places
        if found is not None:
            self.pool.share(found)
        self._places[request_id] = _Place(self.pool.take(), found)

    def advance(
        self, request_id: str, begin: int, end: int, chain: HashChain | None, tokens: Sequence[int]
    ) -> "array[int]":
        """Plan that tokens ``begin`` to ``end`` are computed: see :attr:`galley.ops.executor.Batch.states`.

        Args:
            request_id: of an open place.
            begin: how many tokens the state has taken in.
            end: how many it will have.
            chain: of the request's hashes; None: others may not go on from its states.
            tokens: of the request.
        """
        place = self._places[request_id]
        read = place.own if place.read is None else place.read
        plan = array("q", [read if begin else -1])
        behind = None
        for done in self._kept(begin, end):
            if chain is None:
                break
            link = chain.upto(tokens, done // BLOCK_TOKENS)[done // BLOCK_TOKENS - 1]
            if self.find(link) is not None or not self.pool.can_take(1):
                continue
            slot = self.pool.take()
            if done == end:  # the state is kept where it is; the next step writes elsewhere
                self.pool.register(link, place.own)
                behind = slot
                continue
            plan.extend((done - begin, slot))
            self.pool.register(link, slot)
            self.pool.release(slot)
        plan.extend((end - begin, place.own))
        if place.read is not None:
            self.pool.release(place.read)
        place.read = None
        if behind is not None:
            place.own, place.read = behind, place.own
        return plan

    def _kept(self, begin: int, end: int) -> range:
        """After how many tokens states are kept on the way."""
        if not self._interval:
            return range(0)
        first = begin // self._interval * self._interval + self._interval
        return range(first, end + 1, self._interval)

    def close(self, request_id: str) -> None:
        """Give up the slots; states that are kept stay cached."""
        for slot in self._held(self._places.pop(request_id)):
            self.pool.release(slot)

    def _held(self, place: _Place) -> list[int]:
        return [place.own] if place.read is None else [place.own, place.read]

    def check(self) -> None:
        """Assert conservation: each slot is free, cached, or used once for each request that holds it."""
        held: dict[int, int] = {}
        for place in self._places.values():
            for slot in self._held(place):
                held[slot] = held.get(slot, 0) + 1
        self.pool.check(held)
