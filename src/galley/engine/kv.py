"""The KV cache's books: which request holds which blocks. Joins the pool and the prefix cache."""

import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from galley.engine.blocks import BlockPool
from galley.engine.prefix import (
    PrefixCache,
    extend_chain,
    root_hash,
    window_hash,
    window_links,
)
from galley.engine.sequence import Window
from galley.types import BLOCK_TOKENS, blocks_for

KEPT_WINDOWS: Final = 16
"""Encoded windows that stay when their last request is over. It may come again, at another temperature or
for the times of its words, but soon; and blocks that are used again cost no new memory."""


@dataclass(slots=True)
class _Chain:
    """``links[i]`` is the hash of a request's block i, ``root`` what they start from. Outlives preemptions.

    ``cross``: the hashes of its window's blocks.
    """

    root: bytes
    cross: Sequence[bytes] = ()
    links: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, salt: str, window: Window | None) -> Self:
        root = root_hash(salt)
        if window is None:
            return cls(root)
        root = window_hash(root, window.digest)
        return cls(root, window_links(root, blocks_for(window.rows)))

    def extend(self, tokens: Sequence[int], full_blocks: int) -> None:
        while len(self.links) < full_blocks:
            start = len(self.links) * BLOCK_TOKENS
            parent = self.links[-1] if self.links else self.root
            self.links.append(extend_chain(parent, tokens[start : start + BLOCK_TOKENS]))


@dataclass(slots=True)
class _Table:
    """A running request's blocks; the first ``registered`` ones are in the prefix cache.

    ``cross``: those of its window. ``forks``: those of each hypothesis but the first, in a beam search.
    """

    blocks: "array[int]"  # each step copies their bytes
    registered: int
    cross: "array[int]"
    forks: "list[array[int]]" = field(default_factory=list)


class KVCache:
    """Block tables by request id. Every change keeps ``free + cached + used == total``.

    Args:
        blocks: of the pool.
        prefix_cache: whether full blocks, and encoded windows, are shared.
        kept_windows: how many encoded windows stay when no request needs them.

    Attributes:
        queried_tokens, hit_tokens: looked up in, and supplied by, the prefix cache so far.
    """

    def __init__(
        self, blocks: int, *, prefix_cache: bool, kept_windows: int = KEPT_WINDOWS
    ) -> None:
        self._pool = BlockPool(blocks)
        self._prefix = PrefixCache()
        self._sharing = prefix_cache
        self._kept_windows = kept_windows
        self._tables: dict[str, _Table] = {}
        self._chains: dict[str, _Chain] = {}
        self._copies: list[tuple[int, int]] = []
        self._over: OrderedDict[bytes, _Chain] = OrderedDict()  # of windows, the latest last
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

    def open(
        self,
        request_id: str,
        tokens: Sequence[int],
        *,
        salt: str,
        reusable: int,
        window: Window | None = None,
    ) -> int | None:
        """Start a table with room for all ``tokens`` and the window's rows.

        A window that is not :meth:`encoded` must be so in the step that computes the first token.

        Args:
            request_id: of no open table.
            tokens: known so far.
            salt: the tenant's.
            reusable: how many leading ones need not be computed again, if their keys and values are there.
            window: the audio they belong to.

        Returns:
            How many leading tokens are computed already; None, and nothing changed, if there is no room.
        """
        assert request_id not in self._tables
        chain = self._chain(request_id, salt, window)
        hits: list[int] = []
        if self._sharing and reusable:
            chain.extend(tokens, reusable // BLOCK_TOKENS)
            hits = self._prefix.lookup(chain.links[: reusable // BLOCK_TOKENS])
        cross = self._window_blocks(chain)
        shared = [*hits, *cross]
        idle = sum(map(self._prefix.is_parked, shared))
        missing = blocks_for(len(tokens)) + len(chain.cross) - len(shared)
        if missing > self._pool.free + self._prefix.parked - idle:
            return None
        for block in shared:
            self._prefix.unpark(block)
            self._pool.share(block)
        if len(cross) < len(chain.cross):
            cross = [self._take() for _ in chain.cross]
            for link, block in zip(chain.cross if self._sharing else (), cross, strict=False):
                self._prefix.register(link, block)
        self._tables[request_id] = _Table(array("q", hits), len(hits), array("q", cross))
        has_room = self.grow(request_id, len(tokens))
        assert has_room
        if self._sharing and reusable:
            self.queried_tokens += len(tokens)
            self.hit_tokens += len(hits) * BLOCK_TOKENS
        return len(hits) * BLOCK_TOKENS

    def encoded(self, request_id: str, salt: str, window: Window) -> bool:
        """Whether what an encoder makes of the window is in the cache."""
        chain = self._chain(request_id, salt, window)
        return len(self._window_blocks(chain)) == len(chain.cross)

    def _chain(self, request_id: str, salt: str, window: Window | None) -> _Chain:
        if request_id not in self._chains:
            self._chains[request_id] = _Chain.of(salt, window)
        return self._chains[request_id]

    def _window_blocks(self, chain: _Chain) -> list[int]:
        """The blocks that hold the encoded window, all or none.

        They are held together and evicted from the last on, so if any are gone, nobody holds the others.
        """
        blocks = self._prefix.lookup(chain.cross) if self._sharing else []
        if len(blocks) == len(chain.cross):
            return blocks
        self._drop(chain.cross)
        return []

    def _take(self) -> int:
        """A free block, or a parked one if there is none."""
        if not self._pool.free:
            self._pool.give_back(self._prefix.evict())
        return self._pool.take()

    def grow(self, request_id: str, tokens: int) -> bool:
        """Make room for ``tokens`` tokens in all; False, and nothing taken, if there is none."""
        table = self._tables[request_id]
        if table.forks:
            return self._grow_forks(table, tokens)
        blocks = table.blocks
        missing = blocks_for(tokens) - len(blocks)
        if missing > self._pool.free + self._prefix.parked:
            return False
        blocks.extend(self._take() for _ in range(missing))
        return True

    def _grow_forks(self, table: _Table, tokens: int) -> bool:
        """Room for one token in each; a last block that others hold is copied before it is written."""
        tables = [table.blocks, *table.forks]
        if blocks_for(tokens) > len(table.blocks):
            if len(tables) > self._pool.free + self._prefix.parked:
                return False
            for blocks in tables:
                blocks.append(self._take())
            return True
        held = Counter(blocks[-1] for blocks in tables)
        if len(tables) - len(held) > self._pool.free + self._prefix.parked:
            return False
        for blocks in tables:
            shared = blocks[-1]
            if held[shared] > 1:
                held[shared] -= 1
                self._pool.release(shared)
                blocks[-1] = self._take()
                self._copies.append((shared, blocks[-1]))
        return True

    def fork(self, request_id: str, parents: Sequence[int]) -> None:
        """Hypothesis i goes on from what hypothesis ``parents[i]`` has; they share its blocks."""
        table = self._tables[request_id]
        before = [table.blocks, *table.forks]
        after = [before[parent][:] for parent in parents]
        for block in itertools.chain.from_iterable(after):
            self._pool.share(block)
        table.blocks, *table.forks = after
        for blocks in before:
            self._release(blocks)

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to): blocks to be copied before this step writes any."""
        copies, self._copies = self._copies, []
        return copies

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

    def settled(self, request_id: str) -> int:
        """How many tokens there can be before a new block is needed, or a full one can be shared."""
        table = self._tables[request_id]
        room = BLOCK_TOKENS * len(table.blocks)
        return min(room, BLOCK_TOKENS * (table.registered + 1) - 1) if self._sharing else room

    def close(self, request_id: str) -> None:
        """Give up the table; shareable blocks stay cached.

        The tail of a prefix goes out first, an encoded window, which costs most to make, last.
        """
        table = self._tables.pop(request_id)
        for blocks in (*table.forks, table.blocks, table.cross):
            self._release(blocks)

    def _release(self, blocks: "array[int]") -> None:
        for block in reversed(blocks):
            if self._pool.release(block) and not self._prefix.park(block):
                self._pool.give_back(block)

    def forget(self, request_id: str) -> None:
        """The request is over; it holds no table any more."""
        assert request_id not in self._tables
        chain = self._chains.pop(request_id, None)
        if chain is None or not chain.cross:
            return
        before = self._over.pop(chain.root, chain)
        self._over[chain.root] = max(before, chain, key=lambda known: len(known.links))
        if len(self._over) > self._kept_windows:
            _, oldest = self._over.popitem(last=False)
            self._drop([*oldest.cross, *oldest.links])

    def _drop(self, links: Sequence[bytes]) -> None:
        """Free the blocks with these hashes that nobody holds."""
        for link in links:
            for block in filter(self._prefix.is_parked, self._prefix.lookup([link])):
                self._prefix.drop(block)
                self._pool.give_back(block)

    def forget_prefixes(self) -> None:
        """A step failed, so blocks may be registered that were never computed: share none of them."""
        for block in self._prefix.clear():
            self._pool.give_back(block)

    def table(self, request_id: str, fork: int = 0) -> "array[int]":
        """The blocks, in order, of the request or of a hypothesis of its search, as they are now."""
        table = self._tables[request_id]
        return table.forks[fork - 1] if fork else table.blocks

    def cross_table(self, request_id: str) -> "array[int]":
        """The blocks of the window's rows, in order."""
        return self._tables[request_id].cross

    def check(self) -> None:
        """Conservation: every block is free, cached or used, and is counted once for each holder."""
        held: dict[int, int] = {}
        for table in self._tables.values():
            for fork in (table.blocks, *table.forks):
                blocks = [*fork, *table.cross]
                assert len(set(blocks)) == len(blocks)
            for block in itertools.chain(table.blocks, table.cross, *table.forks):
                held[block] = held.get(block, 0) + 1
        for block in range(self._pool.total):
            assert self._pool.references(block) == held.get(block, 0), block
            assert not (self._prefix.is_parked(block) and block in held), block
        assert self._pool.used == len(held) == self.used
        assert self._pool.free + self.cached + self.used == self.total
