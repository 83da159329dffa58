"""The queue of an engine whose steps take whole requests: in order of arrival, tenants in turn."""

import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from galley.engine.fair_share import FairShare
from galley.types import EngineRequest, Payload

P = TypeVar("P", bound=Payload)


@dataclass(slots=True, eq=False)
class Queued(Generic[P]):
    """A request that waits for its step.

    Attributes:
        payload: the request's payload.
        group: requests of different groups are never in one step.
        order: its arrival number, delayed by its priority.
        arrival: the time of its arrival, on the monotonic clock.
    """

    request: EngineRequest
    payload: P
    group: Hashable
    order: int
    arrival: float

    @property
    def cost(self) -> int:
        """The part of a step's budget that it takes: the tokens or rows that it reads."""
        return self.payload.reads

    def __lt__(self, other: Any) -> bool:
        return bool(self.order < other.order)


class FairQueue(Generic[P]):
    """Requests that wait, by group and tenant."""

    def __init__(self, *, priority_steps: int, budget: int) -> None:
        """Create an empty queue.

        Args:
            priority_steps: number of arrivals by which one level of priority delays a request.
            budget: the most that the requests of a step may cost together; one request may cost more.
        """
        self._priority = priority_steps
        self._budget = budget
        self._fair = FairShare(priority_steps * budget)
        self._heaps: dict[Hashable, dict[str, list[Queued[P]]]] = {}
        self._count = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return self._count

    @property
    def groups(self) -> Mapping[Hashable, Mapping[str, list[Queued[P]]]]:
        """Group -> tenant -> its requests, as a heap. Only groups with requests are in it."""
        return self._heaps

    def add(self, request: EngineRequest, payload: P, group: Hashable = None) -> Queued[P]:
        """Add a request, and return its place in the queue."""
        # A step takes several requests: priority delays a request by arrivals, not by steps.
        order = self._arrivals + request.priority * self._priority
        item = Queued(request, payload, group, order, time.monotonic())
        self._arrivals += 1
        self._fair.join(item)
        self._push(item)
        return item

    def abort(self, request_ids: Iterable[str]) -> None:
        """Remove requests; unknown ids are ignored."""
        gone = frozenset(request_ids)
        for group, tenants in list(self._heaps.items()):
            for tenant, heap in list(tenants.items()):
                left = [item for item in heap if item.request.id not in gone]
                self.finish(item for item in heap if item.request.id in gone)
                self._count -= len(heap) - len(left)
                heapify(left)
                self._keep(group, tenant, left)

    def take(self) -> list[Queued[P]]:
        """Remove and return the next step's requests: of one group, within the budget, at least one."""
        firsts = (heap[0] for tenants in self._heaps.values() for heap in tenants.values())
        group = self._fair.next(firsts).group
        taken: list[Queued[P]] = []
        left = self._budget
        while tenants := self._heaps.get(group):
            item = self._fair.next(heap[0] for heap in tenants.values())
            if taken and item.cost > left:
                break
            left -= item.cost
            tenant = item.request.tenant
            heappop(tenants[tenant])
            self._keep(group, tenant, tenants[tenant])
            self._fair.charge(item, item.cost)
            taken.append(item)
        self._count -= len(taken)
        return taken

    def put_back(self, items: Iterable[Queued[P]]) -> None:
        """Return requests whose step failed to their places."""
        for item in items:
            self._fair.charge(item, -item.cost)
            self._push(item)

    def finish(self, items: Iterable[Queued[P]]) -> None:
        """Forget requests that were taken and have been answered."""
        for item in items:
            self._fair.leave(item)

    def _push(self, item: Queued[P]) -> None:
        heappush(self._heaps.setdefault(item.group, {}).setdefault(item.request.tenant, []), item)
        self._count += 1

    def _keep(self, group: Hashable, tenant: str, heap: list[Queued[P]]) -> None:
        tenants = self._heaps[group]
        tenants[tenant] = heap
        if not heap:
            del tenants[tenant]
        if not tenants:
            del self._heaps[group]
