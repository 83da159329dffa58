"""Turns of tenants, by their weights, where one job runs at a time."""

import asyncio
import itertools
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from galley.errors import QueueFull

MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Maximum total size of waiting jobs, which the server keeps in memory."""


class Share(NamedTuple):
    """A tenant, and its weight compared with other tenants."""

    tenant: str = ""
    weight: float = 1.0


ANONYMOUS: Final = Share()
"""Share of all callers of a server without keys."""


class _Job(NamedTuple):
    size: int
    number: int
    turn: "asyncio.Future[None]"


@dataclass(eq=False)
class _Queue:
    """One tenant's jobs, the smallest first; ``had``: the seconds of its turns divided by its weight."""

    weight: float = 1.0
    had: float = 0.0
    jobs: list[_Job] = field(default_factory=list)

    @property
    def bytes(self) -> float:
        """The size of the jobs divided by the weight."""
        return sum(job.size for job in self.jobs) / self.weight


class Turns:
    """A lock that goes to the tenant that has had it for the least time, for the smallest of its jobs.

    Attributes:
        taken: whether the lock is held.
    """

    def __init__(
        self,
        timeout: float,
        most_bytes: int = MOST_WAITING_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a free lock.

        Args:
            timeout: the most seconds that a job waits.
            most_bytes: the most bytes of all waiting jobs together.
            clock: returns the time in seconds; never goes back.
        """
        self._timeout = timeout
        self._most_bytes = most_bytes
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._numbers = itertools.count()
        self._bytes = 0
        self._holder: _Queue | None = None
        self._since = 0.0
        self._had = 0.0  # ``had`` of the latest holder when its turn began; for newcomers

    @property
    def taken(self) -> bool:
        """Whether the lock is held."""
        return self._holder is not None

    async def wait(self, size: int, share: Share = ANONYMOUS) -> None:
        """Wait for the turn and take it; :meth:`pass_on` gives it to the next job.

        Args:
            size: bytes of the job.
            share: the tenant's share.

        Raises:
            QueueFull: the turn does not come in time, or the waiting jobs are too large together.
        """
        queue = self._queue_of(share)
        if not self.taken:
            self._give(queue)
            return
        self._make_room(size, queue)
        job = _Job(size, next(self._numbers), asyncio.get_running_loop().create_future())
        insort(queue.jobs, job)
        self._bytes += size
        try:
            async with asyncio.timeout(self._timeout):
                await job.turn
        except TimeoutError:
            raise self._full(f"no turn within {self._timeout:g} s") from None
        except asyncio.CancelledError:
            if job.turn.done() and not job.turn.cancelled() and not job.turn.exception():
                self.pass_on()  # the turn came at the same time
            raise
        finally:
            self._leave(queue, job)

    def pass_on(self) -> None:
        """Give the turn to the next job, if one waits."""
        if self._holder is not None:
            self._holder.had += (self._clock() - self._since) / self._holder.weight
            self._holder = None
        waiting = [queue for queue in self._queues.values() if queue.jobs]
        while waiting and not self.taken:
            queue = min(waiting, key=lambda one: one.had)
            job = queue.jobs[0]
            self._leave(queue, job)
            if not job.turn.done():
                self._give(queue)
                job.turn.set_result(None)
            waiting = [queue for queue in waiting if queue.jobs]
        # Forget a tenant that has had no more than a newcomer.
        self._queues = {
            tenant: queue
            for tenant, queue in self._queues.items()
            if queue.jobs or queue is self._holder or queue.had > self._had
        }

    def _queue_of(self, share: Share) -> _Queue:
        queue = self._queues.setdefault(share.tenant, _Queue())
        queue.weight = share.weight
        if not queue.jobs and queue is not self._holder:
            queue.had = max(queue.had, self._had)
        return queue

    def _give(self, queue: _Queue) -> None:
        self._holder, self._since, self._had = queue, self._clock(), queue.had

    def _leave(self, queue: _Queue, job: _Job) -> None:
        place = bisect_left(queue.jobs, job)
        if place < len(queue.jobs) and queue.jobs[place] is job:
            del queue.jobs[place]
            self._bytes -= job.size

    def _make_room(self, size: int, newcomer: _Queue) -> None:
        """Refuse the largest jobs of the tenant with the most bytes waiting, which may be the newcomer."""
        while self._bytes + size > self._most_bytes:
            full = self._full("the queue is full")
            largest = max(self._queues.values(), key=lambda queue: queue.bytes)
            if not largest.jobs or largest.bytes <= newcomer.bytes + size / newcomer.weight:
                raise full
            job = largest.jobs[-1]
            self._leave(largest, job)
            if not job.turn.done():
                job.turn.set_exception(full)

    def _full(self, why: str) -> QueueFull:
        return QueueFull(
            f"The server has too much text to tokenize: {why}", retry_after=self._timeout
        )
