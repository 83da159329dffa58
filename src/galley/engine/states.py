"""Slots for the states of recurrent layers: of running requests, and kept ones that others continue from.

A state covers all tokens before it and cannot be rolled back. A request owns a slot for its current
state. Its states at regular intervals of tokens are kept in separate slots, as far as there are
any, and are found by the hash of these tokens. A kept state is never overwritten: a request that
continues from it reads it in its next step and writes to its own slot.

    tokens   0 ........ 128 ........ 256 ... 300 of a prompt, in one step, kept every 128
    slots    -1          7            2       5      read (none), two kept, the request's own
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from galley.engine.blocks import BlockPool
from galley.types import BLOCK_TOKENS
from galley.types.block_hashes import HashChain


@dataclass(slots=True)
class _Place:
    """Where a running request's state is.

    Attributes:
        own: the slot that its steps write.
        read: the slot of a kept state that its next step continues from; None: it continues from ``own``.
    """

    own: int
    read: int | None


class StateCache:
    """Slots by request id. Every change preserves the pool's ``free + cached + used == total``.

    A slot is released as soon as the step is planned whose rows are the last to read it. Another sequence
    of that step may therefore write it: executors process the sequences of a batch in order.

    Args:
        slots: number of slots; at least 2.
        interval: tokens from one kept state to the next, whole blocks; 0 keeps none.

    Attributes:
        pool: the pool of slots.
    """

    def __init__(self, slots: int, *, interval: int) -> None:
        assert slots >= 2
        assert interval % BLOCK_TOKENS == 0
        self.pool = BlockPool(slots)
        self._interval = interval
        self._places: dict[str, _Place] = {}

    def longest(self, links: Sequence[bytes]) -> int:
        """Return the largest number of the blocks with these hashes that ends in a kept state, or 0."""
        return next((n for n in range(len(links), 0, -1) if self.find(links[n - 1]) is not None), 0)

    def find(self, link: bytes) -> int | None:
        """Return the slot of the state after the block with this hash; None if none is kept."""
        return self.pool.find(link)

    def can_open(self, found: int | None) -> bool:
        """Return whether one more request gets a slot, continuing from the kept state ``found``."""
        return self.pool.can_take(1, () if found is None else (found,))

    def open(self, request_id: str, found: int | None) -> None:
        """Create a request's state, or let it continue from a kept one."""
        assert request_id not in self._places
        if found is not None:
            self.pool.share(found)
        self._places[request_id] = _Place(self.pool.take(), found)

    def advance(
        self, request_id: str, begin: int, end: int, chain: HashChain | None, tokens: Sequence[int]
    ) -> "array[int]":
        """Plan the tokens ``begin`` to ``end``: see :attr:`galley.ops.batch.Batch.states`.

        Args:
            request_id: a request whose slot is open.
            begin: number of tokens that the state covers.
            end: number of tokens that it will cover.
            chain: the request's hashes; None: others may not continue from its states.
            tokens: the request's tokens.
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
            if done == end:  # the state is kept in place; the next step writes to another slot
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
        """Return the numbers of tokens after which states are kept on the way."""
        if not self._interval:
            return range(0)
        first = begin // self._interval * self._interval + self._interval
        return range(first, end + 1, self._interval)

    def close(self, request_id: str) -> None:
        """Release the slots; kept states stay cached."""
        for slot in self._held(self._places.pop(request_id)):
            self.pool.release(slot)

    def _held(self, place: _Place) -> list[int]:
        return [place.own] if place.read is None else [place.own, place.read]

    def check(self) -> None:
        """Assert conservation: each slot is free, cached, or referenced once per request that holds it."""
        held: dict[int, int] = {}
        for place in self._places.values():
            for slot in self._held(place):
                held[slot] = held.get(slot, 0) + 1
        self.pool.check(held)
