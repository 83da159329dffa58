"""The pool of KV blocks: which are free, how often others are referenced, and what cached ones contain."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from galley.engine.kept_blocks import KeptBlocks


class _Keeping(NamedTuple):
    """Until when a block is evicted only after others, and for which tenant."""

    until: float
    tenant: str


_NOT_KEPT: Final = _Keeping(0.0, "")


class BlockPool:
    """Hands out block ids 0 to ``total - 1``, without knowledge of tokens.

    A block is free (its content is forgotten), used (one or more references), or cached: it has no
    references, but its content has a key under which it can be found and shared again. When no block is
    free, cached blocks are taken: least recently used first, and those that are kept for a time last, up
    to half of the pool; of this half, the tenant that has the most gives up blocks to others.
    ``free + cached + used == total`` holds at any time.

    Args:
        total: number of blocks.
        clock: returns seconds, for the times until which blocks are kept.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self._clock = clock
        # Popped from the end: low ids first, so a lightly loaded pool touches little memory.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._kept = KeptBlocks()
        self._keeping: dict[int, _Keeping] = {}
        """Block with a key -> until when and for whom it is kept, whenever it has no references."""
        self._on_evict: Callable[[bytes, int], None] | None = None
        self._changes: dict[bytes, bool] | None = None

    def on_evict(self, call: Callable[[bytes, int], None]) -> None:
        """Call back with the key and the block whenever a cached block is about to be taken."""
        self._on_evict = call

    def take_changes(self) -> dict[bytes, bool]:
        """Return the keys found (True) or lost since the last call; the first call returns all."""
        changes = self._changes
        self._changes = {}
        return dict.fromkeys(self._block_of, True) if changes is None else changes

    def _note(self, key: bytes, found: bool) -> None:
        if self._changes is not None:
            self._changes[key] = found

    @property
    def free(self) -> int:
        """Number of blocks without content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Number of blocks without references whose content can still be found."""
        return len(self._cached) + len(self._kept)

    @property
    def used(self) -> int:
        """Number of blocks with at least one reference."""
        return self.total - len(self._free) - self.cached

    def can_take(self, count: int, shared: Iterable[int] = ()) -> bool:
        """Return whether ``count`` blocks could be taken after referencing each ``shared`` one."""
        revived = sum(block in self._cached or block in self._kept for block in set(shared))
        return count <= len(self._free) + self.cached - revived

    def reserve(self, count: int, shared: Iterable[int]) -> bool:
        """Add references to ``shared`` blocks if ``count`` more can be taken; return whether they can."""
        if not self.can_take(count, shared):
            return False
        for block in shared:
            self.share(block)
        return True

    def take(self) -> int:
        """Return a block with one reference: a free one, or the least recently used cached one."""
        if self._free:
            block = self._free.pop()
        else:
            block = self._least_wanted()
            key = self._key_of.pop(block)
            del self._block_of[key]
            self._keeping.pop(block, None)
            if self._on_evict is not None:
                self._on_evict(key, block)
            self._note(key, False)
        self._references[block] = 1
        return block

    def _least_wanted(self) -> int:
        """Remove and return a cached block: one that is kept no longer, else the least recently used."""
        block = self._kept.pop_ended(before=self._clock())
        if block is None and self._cached:
            block, _ = self._cached.popitem(last=False)
        if block is None:
            block = self._kept.pop_of_largest()
        assert block is not None, "the caller has checked that there is a block"
        return block

    def keep(self, keys: Iterable[bytes], seconds: float, tenant: str = "") -> None:
        """Evict a tenant's blocks with these keys only after others, for so long from now or for longer."""
        until = self._clock() + seconds
        for key in keys:
            block = self._block_of.get(key)
            if block is not None and until > self._keeping.get(block, _NOT_KEPT).until:
                self._keeping[block] = _Keeping(until, tenant)
                if not self._references[block]:
                    self._cached.pop(block, None)
                    self._cache(block)

    def _cache(self, block: int) -> None:
        """Put a block without references among those that others can find."""
        keeping = self._keeping.get(block, _NOT_KEPT)
        if keeping.until <= self._clock():
            self._cached[block] = None
            return
        self._kept.add(block, *keeping)
        if len(self._kept) > self.total // 2 and (over := self._kept.pop_of_largest()) is not None:
            del self._keeping[over]
            self._cached[over] = None

    def share(self, block: int) -> None:
        """Add a reference to a used or cached block."""
        self._cached.pop(block, None)
        self._kept.discard(block)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; after the last one, a block with a key is cached and any other is free."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._key_of:
            self._cache(block)
        else:
            self._free.append(block)

    def references(self, block: int) -> int:
        """Return how many block tables hold the block."""
        return self._references[block]

    def find(self, key: bytes) -> int | None:
        """Return the used or cached block with this content; None if there is none."""
        return self._block_of.get(key)

    def register(self, key: bytes, block: int) -> bool:
        """Register the used block's content under ``key``; return False if the key has another block."""
        if key in self._block_of:
            return False
        self._block_of[key] = block
        self._key_of[block] = key
        self._note(key, True)
        return True

    def keys_by_use(self) -> list[bytes]:
        """Return the keys of cached blocks, the least recently used first, then those of used ones."""
        cached = [self._key_of[block] for block in self._cached]
        return [*cached, *(self._block_of.keys() - cached)]

    def forget(self, keys: Iterable[bytes]) -> None:
        """Free the cached blocks with these keys; used ones are left alone."""
        for key in keys:
            block = self._block_of.get(key)
            if block is not None and not self._references[block]:
                self._cached.pop(block, None)
                self._kept.discard(block)
                self._keeping.pop(block, None)
                del self._block_of[key], self._key_of[block]
                self._free.append(block)
                self._note(key, False)

    def forget_all(self) -> None:
        """Make all content unreachable: cached blocks become free."""
        self._free += [*self._cached, *self._kept.clear()]
        for key in self._block_of:
            self._note(key, False)
        self._cached.clear()
        self._keeping.clear()
        self._block_of.clear()
        self._key_of.clear()

    def check(self, held: dict[int, int]) -> None:
        """Assert that ``held`` maps each used block to its reference count, and that no other is used."""
        for block in range(self.total):
            assert self._references[block] == held.get(block, 0), block
            cached = (block in self._cached) + (block in self._kept)
            assert cached + (block in held) <= 1, block
        assert self.used == len(held)
        assert self.free + self.cached + self.used == self.total
        assert set(self._cached) | self._keeping.keys() <= self._key_of.keys()


def check_blocks(
    pool: BlockPool, tables: "Sequence[Sequence[int]] | Iterator[Sequence[int]]"
) -> None:
    """Assert conservation: the pool counts each block once per table that holds it."""
    held: Counter[int] = Counter()
    for table in tables:
        assert len(set(table)) == len(table), "a block occurs twice in a table"
        held.update(table)
    pool.check(dict(held))
