"""The pool of KV blocks: which are free, how often others are referred to, and what cached ones hold."""

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Hands out block ids 0 to ``total - 1``; knows no tokens.

    A block is free (its content is forgotten), used (one or more references), or cached: nobody refers
    to it, but its content has a key under which it can be found and shared again. Cached blocks are
    taken, least recently used first, when no block is free. ``free + cached + used == total`` at any
    time.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        # Popped from the end: low ids first, so a lightly loaded pool touches little memory.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody refers to and whose content can still be found."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks with at least one reference."""
        return self.total - len(self._free) - len(self._cached)

    def can_take(self, count: int, shared: Iterable[int] = ()) -> bool:
        """Whether ``count`` blocks could be taken once each of the ``shared`` ones has a reference more."""
        revived = sum(block in self._cached for block in set(shared))
        return count <= len(self._free) + len(self._cached) - revived

    def reserve(self, count: int, shared: Iterable[int]) -> bool:
        """Refer once more to the ``shared`` blocks if ``count`` more can be taken; returns whether."""
        if not self.can_take(count, shared):
            return False
        for block in shared:
            self.share(block)
        return True

    def take(self) -> int:
        """A block with one reference: a free one, or the least recently used cached one."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference, to a used or a cached block."""
        self._cached.pop(block, None)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; after the last one a block with a key is cached, any other is free."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._key_of:
            self._cached[block] = None
        else:
            self._free.append(block)

    def references(self, block: int) -> int:
        """How many block tables hold the block."""
        return self._references[block]

    def find(self, key: bytes) -> int | None:
        """The block with this content, used or cached."""
        return self._block_of.get(key)

    def register(self, key: bytes, block: int) -> None:
        """Let ``key`` find the used block's content, unless it finds another block already."""
        if key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self, keys: Iterable[bytes]) -> None:
        """Free the cached blocks with these keys; used ones are left alone."""
        for key in keys:
            block = self._block_of.get(key)
            if block is not None and block in self._cached:
                del self._cached[block], self._block_of[key], self._key_of[block]
                self._free.append(block)

    def forget_all(self) -> None:
        """No content can be found any more: cached blocks are free."""
        self._free += self._cached
        self._cached.clear()
        self._block_of.clear()
        self._key_of.clear()

    def check(self, held: dict[int, int]) -> None:
        """Assert that ``held`` has each used block and its references, and that no other is used."""
        for block in range(self.total):
            assert self._references[block] == held.get(block, 0), block
            assert not (block in self._cached and block in held), block
        assert self.used == len(held)
        assert self.free + self.cached + self.used == self.total
        assert set(self._cached) <= self._key_of.keys()
