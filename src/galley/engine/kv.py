"""The KV cache's books: which request holds which blocks. Joins the pool and the prefix cache."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from galley.engine.blocks import BlockPool
from galley.engine.prefix import PrefixCache, extend_chain, root_hash
from galley.ops.executor import Ints
from galley.types import BLOCK_TOKENS


@dataclass(slots=True)
class _Chain:
    """``links[i]`` is the hash of a request's block i. Outlives preemptions."""

    salt: str
    links: list[bytes] = field(default_factory=list)

    def extend(self, tokens: Sequence[int], full_blocks: int) -> None:
        while len(self.links) < full_blocks:
            start = len(self.links) * BLOCK_TOKENS
            parent = self.links[-1] if self.links else root_hash(self.salt)
            self.links.append(extend_chain(parent, tokens[start : start + BLOCK_TOKENS]))


@dataclass(slots=True)
class _Table:
    """A running request's blocks; the first ``registered`` ones are in the prefix cache."""

    blocks: "array[int]"  # each step copies it, which is slow from a list
    registered: int


class KVCache:
    """Block tables by request id. Every change keeps ``free + cached + used == total``.

    Attributes:
        queried_tokens, hit_tokens: looked up in, and supplied by, the prefix cache so far.
    """

    def __init__(self, blocks: int, *, prefix_cache: bool) -> None:
        self._pool = BlockPool(blocks)
        self._prefix = PrefixCache()
        self._sharing = prefix_cache
        self._tables: dict[str, _Table] = {}
        self._chains: dict[str, _Chain] = {}
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def total(self) -> int:
        """All blocks."""
        return self._pool.total

    @property
    def cached(self) -> int:
        """Blocks nobody holds that still have a known prefix; taken when the free ones run out."""
        return self._prefix.parked

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self._pool.total - self._pool.free - self._prefix.parked

    def open(self, request_id: str, tokens: Sequence[int], *, salt: str, reuse: bool) -> int | None:
        """Start a table with room for all ``tokens``; returns how many leading ones are computed already.

        At least the last token is left to compute, since its logits are wanted. Without ``reuse``
        nothing is looked up (the request wants logits of its whole prompt). None, and nothing changed,
        if there is no room.
        """
        assert request_id not in self._tables
        chain = self._chains.setdefault(request_id, _Chain(salt))
        hits: list[int] = []
        if self._sharing and reuse:
            chain.extend(tokens, (len(tokens) - 1) // BLOCK_TOKENS)
            hits = self._prefix.lookup(chain.links)
        idle_hits = sum(map(self._prefix.is_parked, hits))
        missing = -(-len(tokens) // BLOCK_TOKENS) - len(hits)
        if missing > self._pool.free + self._prefix.parked - idle_hits:
            return None
        cached = len(hits) * BLOCK_TOKENS
        for block in hits:
            self._prefix.unpark(block)
            self._pool.share(block)
        self._tables[request_id] = _Table(array("q", hits), registered=len(hits))
        has_room = self.grow(request_id, len(tokens))
        assert has_room
        if self._sharing and reuse:
            self.queried_tokens += len(tokens)
            self.hit_tokens += cached
        return cached

    def grow(self, request_id: str, tokens: int) -> bool:
        """Make room for ``tokens`` tokens in all; False, and nothing taken, if there is none."""
        blocks = self._tables[request_id].blocks
        missing = -(-tokens // BLOCK_TOKENS) - len(blocks)
        if missing > self._pool.free + self._prefix.parked:
            return False
        for _ in range(missing):
            if not self._pool.free:
                self._pool.give_back(self._prefix.evict())
            blocks.append(self._pool.take())
        return True

    def commit(self, request_id: str, tokens: Sequence[int], computed: int) -> None:
        """``computed`` tokens are in the cache once this step has run: full blocks can be shared."""
        if not self._sharing:
            return
        table = self._tables[request_id]
        full = computed // BLOCK_TOKENS
        if full <= table.registered:
            return
        chain = self._chains[request_id]
        chain.extend(tokens, full)
        for i in range(table.registered, full):
            self._prefix.register(chain.links[i], table.blocks[i])
        table.registered = full

    def close(self, request_id: str) -> None:
        """Give up the table; shareable blocks stay cached, the tail of a prefix goes out first."""
        for block in reversed(self._tables.pop(request_id).blocks):
            if self._pool.release(block) and not self._prefix.park(block):
                self._pool.give_back(block)

    def forget(self, request_id: str) -> None:
        """The request is over; it holds no table any more."""
        assert request_id not in self._tables
        self._chains.pop(request_id, None)

    def forget_prefixes(self) -> None:
        """A step failed, so blocks may be registered that were never computed: share none of them."""
        for block in self._prefix.clear():
            self._pool.give_back(block)

    def table(self, request_id: str, tokens: int) -> Ints:
        """The blocks of the first ``tokens`` tokens, in order."""
        blocks = self._tables[request_id].blocks[: -(-tokens // BLOCK_TOKENS)]
        return np.array(blocks, dtype=np.int64)

    def check(self) -> None:
        """Conservation: every block is free, cached or used, and is counted once for each holder."""
        held: dict[int, int] = {}
        for table in self._tables.values():
            assert len(set(table.blocks)) == len(table.blocks)
            for block in table.blocks:
                held[block] = held.get(block, 0) + 1
        for block in range(self._pool.total):
            assert self._pool.references(block) == held.get(block, 0), block
            assert not (self._prefix.is_parked(block) and block in held), block
        assert self._pool.used == len(held) == self.used
        assert self._pool.free + self.cached + self.used == self.total
