"""One simulated replica: continuous batching with prompts in parts, and a prefix cache.

Steps in which all sequences decode are taken together up to the next event, so the work is by request and
not by token.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from galley.plan.cluster.engine import Chunk, Engine
from galley.plan.cluster.routers import leading
from galley.types import BLOCK_TOKENS, blocks_for

_MOST_STEPS: Final = 64
"""Most steps taken together; their time is that of the middle one."""


@dataclass(slots=True, eq=False)
class Job:
    """One request.

    Attributes:
        index: of the request in the traffic.
        sent: when it was sent, in seconds.
        prompt, output: its tokens.
        chain: hashes of the full blocks of the prompt.
        done: output tokens delivered.
        read: tokens whose keys and values are there.
        reads: tokens to read before the next is generated: the prompt and what was delivered elsewhere.
        first: when the first token was delivered; None: not yet.
        cached: tokens of the prompt that were in the cache of the replica that began it.
        expected: tokens of the prompt that the router expected there.
    """

    index: int
    sent: float
    prompt: int
    output: int
    chain: Sequence[bytes]
    done: int = 0
    read: int = 0
    reads: int = 0
    first: float | None = None
    cached: int | None = None
    expected: int = 0


class Clock:
    """The time of a simulation in seconds."""

    now: float = 0.0


class Replica:
    """A replica; ``mean_output`` is what it expects a request to generate.

    Routers choose between replicas themselves: see :class:`galley.service.routing.Candidate`.
    """

    # All replicas are equally fast, and their figures are never old.
    pace: None = None
    silent = 0.0

    def __init__(self, name: str, engine: Engine, mean_output: float, clock: Clock) -> None:
        self.name = name
        self.cache: OrderedDict[bytes, None] = OrderedDict()
        self.blocks = self.cache.keys()
        self._clock = clock
        self._engine = engine
        self._mean_output = mean_output
        self._waiting: deque[Job] = deque()
        self._reading: deque[Job] = deque()
        # (steps after which it ends, index of the request, the request).
        self._writing: list[tuple[int, int, Job]] = []
        self._unread = 0
        self._reserved = 0
        # Sums over those that write: of tokens with keys and values, and of output tokens.
        self._context = 0
        self._done = 0
        self._written = 0
        self._began, self._step_seconds, self._steps = 0.0, 0.0, 0
        # Tokens owed when the steps began: by those that do not write yet, and by those that do.
        self._owed = self._rest = self._least_rest = self._rest_per_s = 0.0
        self._parts: list[tuple[Job, int]] = []

    @property
    def due(self) -> float | None:
        """When the steps begun end; None: there are none."""
        return self._began + self._steps * self._step_seconds if self._steps else None

    @property
    def requests(self) -> int:
        """Requests that have not ended."""
        return len(self._waiting) + len(self._reading) + len(self._writing)

    @property
    def owed(self) -> float:
        """The tokens that it has to compute for its requests, estimated as by admission."""
        if not self._steps:
            return 0.0
        written = self._rest - self._rest_per_s * (self._clock.now - self._began)
        return self._owed + max(written, self._least_rest)

    def add(self, job: Job, now: float) -> None:
        """Accept a request; :attr:`due` may change."""
        job.read, job.reads = 0, job.prompt + job.done
        self._waiting.append(job)
        self._unread += max(0, job.reads - job.expected)
        if not self._steps:
            self._plan(now)
            return
        if not self._parts and self._can_admit(job):
            # The newcomer is read from the end of the step that runs now.
            self._steps = min(self._steps, self._passed(now) + 1)
        self._estimate()

    def finish(self) -> list[Job]:
        """Complete the steps begun, begin the next, and return the requests that have ended."""
        assert self.due is not None
        now, steps, writing = self.due, self._steps, len(self._writing)
        self._written += steps
        self._context += steps * writing
        self._done += steps * writing
        ended = []
        while self._writing and self._writing[0][0] <= self._written:
            job = heapq.heappop(self._writing)[2]
            job.done = job.output
            self._context -= job.prompt + job.output
            self._done -= job.output
            ended.append(job)
        for job, rows in self._parts:
            job.read += rows
            if job.read == job.reads:
                self._reading.remove(job)
                if self._begin_writing(job, now):
                    ended.append(job)
        for job in ended:
            self._reserved -= job.prompt + job.output
        self._plan(now)
        return ended

    def keep(self, chain: Sequence[bytes]) -> None:
        """Put blocks in the prefix cache; the least recently used leave it."""
        for link in chain:
            self.cache[link] = None
            self.cache.move_to_end(link)
        room = self._engine.kv_tokens // BLOCK_TOKENS - blocks_for(self._done)
        while len(self.cache) > max(0, room):
            self.cache.popitem(last=False)

    def lost(self, now: float) -> list[Job]:
        """Return all its requests, with the tokens that were delivered until now."""
        passed = self._passed(now)
        jobs = [*self._waiting, *self._reading]
        for end, _, job in self._writing:
            job.done = job.output - (end - self._written - passed)
            jobs.append(job)
        return sorted(jobs, key=lambda job: job.index)

    def _begin_writing(self, job: Job, now: float) -> bool:
        """Take a request whose prompt is read; return whether its first token was its last."""
        self._unread -= max(0, job.reads - job.expected)
        job.done += 1
        if job.first is None:
            job.first = now
        self.keep(job.chain)
        if job.done == job.output:
            return True
        self._context += job.prompt + job.done
        self._done += job.done
        end = self._written + job.output - job.done
        heapq.heappush(self._writing, (end, job.index, job))
        return False

    def _passed(self, now: float) -> int:
        """Return how many of the steps begun are over."""
        if not self._steps:
            return 0
        return min(self._steps - 1, int((now - self._began) / self._step_seconds))

    def _can_admit(self, job: Job) -> bool:
        seated = len(self._reading) + len(self._writing) < self._engine.seats
        return seated and self._reserved + job.prompt + job.output <= self._engine.kv_tokens

    def _admit(self) -> None:
        while self._waiting and self._can_admit(self._waiting[0]):
            job = self._waiting.popleft()
            self._reserved += job.prompt + job.output
            # The last token is computed in any case.
            usable = job.chain[: (job.prompt - 1) // BLOCK_TOKENS]
            job.read = BLOCK_TOKENS * leading(usable, self.cache)
            if job.cached is None:
                job.cached = job.read
            self._reading.append(job)

    def _plan(self, now: float) -> None:
        """Begin the next step, or the next steps if all of them are alike."""
        self._admit()
        writing, budget = len(self._writing), self._engine.batch_tokens
        left = max(budget // 4, budget - writing)
        self._parts = []
        for job in self._reading:
            rows = min(left, job.reads - job.read)
            self._parts.append((job, rows))
            left -= rows
            if not left:
                break
        if self._parts:
            self._steps = 1
        elif writing:
            self._steps = min(_MOST_STEPS, self._writing[0][0] - self._written)
        else:
            self._steps = 0
            return
        chunks = [Chunk(job.read, n, job.read + n == job.reads) for job, n in self._parts]
        context = self._context / writing + self._steps / 2 if writing else 0.0
        self._began = now
        self._step_seconds = self._engine.seconds(writing, context, chunks)
        self._estimate()

    def _estimate(self) -> None:
        """Estimate what is owed from the beginning of the steps on."""
        waiting = len(self._waiting) + len(self._reading)
        writing, mean = len(self._writing), self._mean_output
        self._owed = self._unread + waiting * mean
        self._rest, self._least_rest = writing * mean - self._done, writing * mean / 2
        self._rest_per_s = writing / self._step_seconds
