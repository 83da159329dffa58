"""Cached blocks that are kept for a time, and when it ends."""

import heapq
import itertools


class KeptBlocks:
    """Blocks with the time until which each is kept, in seconds on any one clock."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._order: list[tuple[float, int, int]] = []
        """Heap of (time, number of the entry, block); entries of blocks with another time are stale."""
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, block: int) -> bool:
        return block in self._until

    def add(self, block: int, until: float) -> None:
        """Keep a block until then. Of several with one time, the one that was added first ends first."""
        self._until.pop(block, None)
        self._until[block] = until
        heapq.heappush(self._order, (until, next(self._count), block))
        if len(self._order) > 2 * len(self._until) + 64:
            times = self._until.items()
            self._order = [(time, next(self._count), kept) for kept, time in times]
            heapq.heapify(self._order)

    def discard(self, block: int) -> None:
        """Keep the block no longer."""
        self._until.pop(block, None)

    def pop(self, before: float = float("inf")) -> int | None:
        """Remove and return the block whose time ends first, if it ends before then."""
        while self._order and self._order[0][0] < before:
            until, _, block = heapq.heappop(self._order)
            if self._until.get(block) == until:
                del self._until[block]
                return block
        return None

    def clear(self) -> list[int]:
        """Keep no block any longer; return those that were kept."""
        kept = list(self._until)
        self._until.clear()
        self._order.clear()
        return kept
