"""Cached blocks that are kept for a time, when it ends, and for whom."""

import heapq
import itertools


class _Times:
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


class KeptBlocks:
    """Kept blocks by tenant. When there are too many, the tenant with the most gives one up."""

    def __init__(self) -> None:
        self._all = _Times()
        self._tenants: dict[str, _Times] = {}
        self._tenant_of: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, block: int) -> bool:
        return block in self._all

    def add(self, block: int, until: float, tenant: str = "") -> None:
        """Keep a block for a tenant until then. Of several with one time, the first added ends first."""
        self.discard(block)
        self._all.add(block, until)
        self._tenants.setdefault(tenant, _Times()).add(block, until)
        self._tenant_of[block] = tenant

    def discard(self, block: int) -> None:
        """Keep the block no longer."""
        self._all.discard(block)
        self._forget(block)

    def pop_ended(self, before: float) -> int | None:
        """Remove and return the block whose time ends first, if it ends before then."""
        block = self._all.pop(before)
        if block is not None:
            self._forget(block)
        return block

    def pop_of_largest(self) -> int | None:
        """Remove and return a block of the tenant with the most: the one whose time ends first."""
        if not self._tenants:
            return None
        block = max(self._tenants.values(), key=len).pop()
        assert block is not None, "tenants without blocks are forgotten"
        self.discard(block)
        return block

    def _forget(self, block: int) -> None:
        tenant = self._tenant_of.pop(block, None)
        if tenant is None:
            return
        own = self._tenants[tenant]
        own.discard(block)
        if not own:
            del self._tenants[tenant]

    def clear(self) -> list[int]:
        """Keep no block any longer; return those that were kept."""
        self._tenants.clear()
        self._tenant_of.clear()
        return self._all.clear()
