"""A runtime over a library that computes batches from beginning to end, so that texts wait for a worker.

Each worker is a thread that calls the library with one batch at a time. It reports tokens as they come, or
all of them at the end; the engine's steps collect what was reported.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Queue
from typing import Final, Generic

from galley.runtimes.text_build import first_line
from galley.runtimes.text_runtime import POLL_SECONDS, Advance, Cache, Writing, arrived
from galley.types import FinishReason

_GATHER_SECONDS: Final = 0.004
_GATHER_MOST: Final = 0.02
"""How long a batch waits for another text to arrive, and the total of these waits.

Texts that arrive together, such as the parts of a recording, would otherwise be two batches: the first
text, and all others after it.
"""


@dataclass(slots=True, eq=False)
class Job(Generic[Writing]):
    """A text or transcript that has not ended.

    Attributes:
        id: id of its request.
        payload: what is to be continued.
        key: jobs with equal keys may be in one batch.
        length: tokens of its prompt, those already delivered included.
        stop_ids: tokens that end it.
        kv_bytes: the most bytes that its keys and values take.
        cancelled: set by the engine's thread, and read by the worker's.
        begun: whether anything was reported to the engine.
        arrival: the time of its arrival, on the monotonic clock.
    """

    id: str
    payload: Writing
    key: Hashable
    length: int
    stop_ids: Collection[int]
    kv_bytes: int
    cancelled: bool = False
    begun: bool = False
    arrival: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> int:
        """The most tokens that it may still have."""
        return self.payload.writes - len(self.payload.output)


@dataclass(frozen=True, slots=True)
class News(Generic[Writing]):
    """A worker's report about a job; the attributes are those of :class:`Advance`."""

    job: Job[Writing]
    tokens: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    scores: Sequence[float] | None = None
    no_speech_prob: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Ended(Generic[Writing]):
    """A worker is free again; what its batch did not finish, it never will."""

    batch: list[Job[Writing]]
    error: str


class BatchedRuntime(ABC, Generic[Writing]):
    """Forms batches and collects results; see :class:`galley.runtimes.text_runtime.TextRuntime`."""

    def __init__(
        self, *, workers: int, most: int, kv_bytes: int | None, spread: int | None = None
    ) -> None:
        """Create the runtime.

        Args:
            workers: the most batches at a time.
            most: the most jobs of a batch.
            kv_bytes: the most bytes of a batch's keys and values, unless it has only one job; None: any
                number.
            spread: the most tokens by which prompts of one batch differ in length; None: any number.
        """
        self._free = workers
        self._most, self._kv_bytes = most, kv_bytes
        self._spread = spread
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batch")
        self._waiting: deque[Job[Writing]] = deque()
        self._jobs: dict[str, Job[Writing]] = {}
        self._news: Queue[News[Writing] | _Ended[Writing]] = Queue()
        self.report: Callable[[News[Writing]], None] = self._news.put
        """Passes something to the engine; for :meth:`compute`, or a thread of the library."""
        self._newest = 0.0

    @abstractmethod
    def job(self, request_id: str, payload: Writing, stop_ids: Collection[int]) -> Job[Writing]:
        """Return the job of a request. Raises RequestError if the library cannot do it."""

    @abstractmethod
    def compute(self, batch: list[Job[Writing]]) -> None:
        """Compute a batch, and :attr:`report` all of it; called in a worker's thread."""

    @property
    def cache(self) -> Cache:
        """The library keeps no KV cache beyond a batch."""
        return Cache(used=0, total=0)

    @property
    def room(self) -> int:
        """How many more texts than are waiting the free workers could take in their batches."""
        return self._free * self._most - len(self._waiting)

    def begin(self, request_id: str, payload: Writing, stop_ids: Collection[int]) -> None:
        """Add a text to a later batch. Raises RequestError if the library cannot continue it."""
        job = self.job(request_id, payload, stop_ids)
        self._jobs[request_id] = job
        self._waiting.append(job)
        self._newest = job.arrival

    def end(self, request_id: str) -> None:
        """Drop a text: its batch continues without it, where the library can."""
        job = self._jobs.pop(request_id)
        job.cancelled = True
        if job in self._waiting:
            self._waiting.remove(job)

    def step(self) -> list[Advance]:
        """Start batches, and wait briefly for their news."""
        self._start()
        gathers = self._free and self._waiting
        found: list[News[Writing]] = []
        for news_or_end in arrived(self._news, _GATHER_SECONDS if gathers else POLL_SECONDS):
            self._take(news_or_end, found)
        by_job: dict[str, list[News[Writing]]] = {}
        for news in found:
            if self._jobs.get(news.job.id) is news.job:
                by_job.setdefault(news.job.id, []).append(news)
        return [self._advance(parts) for parts in by_job.values()]

    def _start(self) -> None:
        while self._free and self._waiting:
            now = time.monotonic()
            fresh = now - self._newest < _GATHER_SECONDS
            if fresh and now - self._waiting[0].arrival < _GATHER_MOST:
                return
            batch = self._next_batch()
            self._free -= 1
            self._pool.submit(self._run, batch)

    def _next_batch(self) -> list[Job[Writing]]:
        """Remove and return the job that has waited longest, and those that can be in its batch."""
        first = self._waiting[0]
        batch: list[Job[Writing]] = []
        least = greatest = first.length
        largest = first.kv_bytes
        for job in self._waiting:
            low, high = min(least, job.length), max(greatest, job.length)
            size = max(largest, job.kv_bytes)
            if job.key != first.key or (self._spread is not None and high - low > self._spread):
                continue
            # The library makes room for each as for the largest.
            if batch and self._kv_bytes is not None and (len(batch) + 1) * size > self._kv_bytes:
                continue
            batch.append(job)
            least, greatest, largest = low, high, size
            if len(batch) == self._most:
                break
        taken = set(map(id, batch))
        self._waiting = deque(job for job in self._waiting if id(job) not in taken)
        return batch

    def _run(self, batch: list[Job[Writing]]) -> None:
        error = "the library ended the batch without a result for it"
        try:
            self.compute(batch)
        except Exception as failure:  # a library may raise anything
            error = first_line(failure)
        self._news.put(_Ended(batch, error))

    def _take(self, news: News[Writing] | _Ended[Writing], found: list[News[Writing]]) -> None:
        if isinstance(news, News):
            found.append(news)
            return
        self._free += 1
        finished = {one.job.id for one in found if one.finish_reason is not None}
        unfinished = (job for job in news.batch if job.id not in finished)
        found += [News(job, finish_reason="error", error=news.error) for job in unfinished]

    def _advance(self, parts: list[News[Writing]]) -> Advance:
        """Return all news of a job as one advance; forget a job that ended."""
        job, last = parts[0].job, parts[-1]
        tokens = [token for part in parts for token in part.tokens]
        rows = len(tokens) if job.begun else job.length + max(0, len(tokens) - 1)
        job.begun = True
        if last.finish_reason is not None:
            del self._jobs[job.id]
        scores = [score for part in parts for score in part.scores or ()]
        return Advance(
            job.id,
            tokens,
            rows,
            scores=scores if job.payload.sampling.scores else None,
            no_speech_prob=parts[0].no_speech_prob,
            finish_reason=last.finish_reason,
            error=last.error,
        )

    def close(self) -> None:
        """Drop all texts, and wait for the batches that run: the library may use the model until then."""
        for request_id in list(self._jobs):
            self.end(request_id)
        self._pool.shutdown()
