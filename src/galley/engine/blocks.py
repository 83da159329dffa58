"""The pool of KV blocks: free list and reference counts. Knows no tokens."""


class BlockPool:
    """Hands out block ids 0 to ``total - 1``.

    A block is free (in the list), used (one or more references), or parked (no reference, but kept by
    the prefix cache, which counts those itself).
    """

    def __init__(self, total: int) -> None:
        self.total = total
        # Popped from the end: low ids first, so a lightly loaded pool touches little memory.
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks with at least one reference."""
        return sum(count > 0 for count in self._references)

    def references(self, block: int) -> int:
        """How many tables hold the block."""
        return self._references[block]

    def take(self) -> int:
        """A free block, with one reference. The caller has made sure there is one."""
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference, to a used or a parked block."""
        self._references[block] += 1

    def release(self, block: int) -> bool:
        """One reference less; True if that was the last. Then give it back or park it."""
        assert self._references[block] > 0
        self._references[block] -= 1
        return self._references[block] == 0

    def give_back(self, block: int) -> None:
        """Free a block that nobody refers to."""
        assert self._references[block] == 0
        self._free.append(block)
