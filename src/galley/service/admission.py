"""Admission to an engine's queue, by free places and by the expected time until the engine can answer.

Each unfinished sequence owes tokens: its prompt until its first output, and as many output tokens as
recent sequences have had, or ``max_tokens`` if that is less. The tokens owed, divided by the measured
pace, are a newcomer's expected wait. Fair shares and priorities let some requests overtake others: a
newcomer waits for no more than its own tenant's part of the queue at that tenant's share of the pace, and
not for requests of a later priority. No clock is read here: every method is passed the time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from galley.errors import QueueFull
from galley.service.pace import Pace
from galley.service.places import Places
from galley.service.turns import Share
from galley.types import EngineRequest
from galley.types.engine_stats import EngineStats

PREDICTED_SHARE: Final = 0.75
"""Fraction of the time until a deadline that a prediction may use; those that just fit are often late."""

SHORTEST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 60.0
"""Bounds of Retry-After, in seconds."""

_ESTIMATE_SECONDS: Final = 0.1
"""Seconds between full estimates of the remaining tokens; in between, finished work is subtracted."""

_SEATS_LOST: Final = 0.01
"""Decay per step of the estimated seats, if fewer sequences ran while others waited."""


@dataclass(slots=True, eq=False)
class Claim:
    """One unfinished sequence.

    Attributes:
        most: maximum number of output tokens.
        done: output tokens so far.
        owed: tokens still expected, as of the last estimate.
        begun: whether it has had an output, so that its prompt is computed.
        engine: name of the engine that has the sequence; "" before it is given to one.
        cached: prompt tokens that this engine is expected to have in its prefix cache.
    """

    tenant: str
    priority: int
    weight: float
    prompt: int
    most: int
    done: int = 0
    owed: float = 0.0
    begun: bool = False
    engine: str = ""
    cached: int = 0

    @property
    def uncached(self) -> float:
        """The tokens that its engine still has to compute."""
        return max(0.0, self.owed - (0 if self.begun else self.cached))

    def estimate(self, mean_output: float | None) -> float:
        """Return the tokens still expected, given the mean number of output tokens of a sequence.

        A sequence that is close to the mean, or past it, is expected to generate half the mean more.
        """
        output = float(self.most - self.done)
        if mean_output is not None:
            output = min(output, max(mean_output - self.done, mean_output / 2))
        return (0 if self.begun else self.prompt) + output


class Admission:
    """Accounts for one engine's unfinished sequences and decides which new ones are admitted.

    Args:
        seats: sequences that run at the same time.
        max_queue: sequences that may wait in addition to these.
    """

    def __init__(self, seats: int, max_queue: int) -> None:
        self.pace = Pace()
        self._seats = seats
        self._places = Places(seats + max_queue)
        self._max_queue = max_queue
        self._claims: dict[Claim, None] = {}
        self._owed: dict[tuple[str, int], float] = {}
        self._uncached_of: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._estimated = -math.inf
        self._running = float(seats)
        self._working = False

    def check(
        self, requests: Sequence[EngineRequest], deadline: float = math.inf, *, now: float
    ) -> None:
        """Raise QueueFull if the requests do not all fit, or not all can be answered before the deadline.

        ``requests`` belong to one tenant.
        """
        if not requests:
            return
        self._check_places(_share_of(requests[0]), len(requests), now)
        if deadline == math.inf:
            return
        last = self._claim(requests[-1])
        before = sum(self._claim(request).owed for request in requests[:-1])
        wait = self._wait(last.tenant, last.priority, last.weight, before, len(requests) - 1, now)
        if wait is not None:
            self._check_deadline(wait + self._own_seconds(last.owed), deadline, now)

    def check_early(
        self, share: Share, priority: int, deadline: float = math.inf, *, now: float
    ) -> None:
        """Raise QueueFull if :meth:`check` would for any request of the tenant with this priority."""
        self._check_places(share, 1, now)
        if deadline == math.inf:
            return
        wait = self._wait(share.tenant, priority, share.weight, 0.0, 0, now)
        if wait is not None:
            self._check_deadline(wait, deadline, now)

    def check_place(self, share: Share, *, now: float) -> None:
        """Raise QueueFull if the tenant gets no place; nothing needs to be known of its request."""
        self._check_places(share, 1, now)

    def room(self, share: Share, *, now: float) -> int:
        """Return how many sequences the tenant may add at once."""
        return self._places.room(share, now=now)

    def resize(self, seats: int) -> None:
        """Set how many sequences run at the same time from now on."""
        self._running = seats if self._running >= self._seats else min(self._running, seats)
        self._seats = seats
        self._places.most = seats + self._max_queue

    def add(self, request: EngineRequest, *, now: float) -> Claim:
        """Add a sequence that is admitted; return its claim."""
        claim = self._claim(request)
        self._claims[claim] = None
        self._places.take(_share_of(request))
        self._weights[claim.tenant] = claim.weight
        self._count(claim, 1)
        self._note_busy(now)
        return claim

    def give(self, claim: Claim, engine: str, cached: int) -> None:
        """Record which engine has a sequence now, and how much of the prompt it should have cached."""
        self._count(claim, -1)
        claim.engine, claim.cached = engine, cached
        self._count(claim, 1)

    def uncached_of(self, engine: str) -> float:
        """Return the tokens that an engine still has to compute for its sequences, as of the last estimate.

        A cached prefix attracts requests to an engine, so the prefix must not count as work that keeps
        the next ones away.
        """
        return max(0.0, self._uncached_of.get(engine, 0.0))

    def progress(self, claim: Claim, tokens: int, cached: int, *, now: float) -> int:
        """Record that a sequence has generated ``tokens`` more; return the tokens computed for that.

        The prompt counts with the first output, but what was computed has no part of its ``cached`` tokens.
        """
        if claim.begun:  # as at nearly every token
            worked, computed = tokens, tokens
            less = min(claim.owed, tokens)
            claim.owed -= less
            self._add(claim, -less, -less)
        else:
            worked, computed = tokens + claim.prompt, tokens + max(0, claim.prompt - cached)
            self._count(claim, -1)
            claim.begun = True
            claim.owed -= min(claim.owed, worked)
            self._count(claim, 1)
        claim.done += tokens
        self.pace.worked(worked, now)
        return computed

    def remove(self, claim: Claim, *, finished: bool, now: float) -> None:
        """Remove a sequence; ``finished``: whether it ran to completion."""
        if finished:
            self.pace.finished(claim.prompt, claim.done)
        del self._claims[claim]
        self._places.leave(claim.tenant)
        self._count(claim, -1)
        self._note_busy(now)

    def observe(self, stats: EngineStats, *, working: bool, now: float) -> None:
        """Record the engine's statistics after each step; ``working``: whether it is up and responding."""
        self._working = working
        if stats.waiting:
            self._running = max(stats.running, self._running - self._seats * _SEATS_LOST)
        self._running = max(self._running, stats.running)
        self._note_busy(now)

    def backlog(self, *, now: float) -> float:
        """Return the seconds until any newcomer would be scheduled; 0 also if that is unknown."""
        pace, cost = self.pace.tokens_per_second, self.pace.mean_cost
        if pace is None or cost is None or len(self._claims) < self._seats_now:
            return 0.0
        self._estimate(now)
        return max(0.0, sum(self._owed.values()) - (self._seats_now - 1) * cost / 2) / pace

    def _claim(self, request: EngineRequest) -> Claim:
        reads, writes = request.payload.reads, request.payload.writes
        claim = Claim(request.tenant, request.priority, request.weight, reads, writes)
        claim.owed = claim.estimate(self.pace.mean_output)
        return claim

    def _count(self, claim: Claim, sign: Literal[1, -1]) -> None:
        """Add what a sequence still needs to the sums, or subtract it."""
        self._add(claim, sign * claim.owed, sign * claim.uncached)

    def _add(self, claim: Claim, owed: float, uncached: float) -> None:
        """Add tokens to the sums of a claim's tenant and engine."""
        key, engine = (claim.tenant, claim.priority), claim.engine
        self._owed[key] = self._owed.get(key, 0.0) + owed
        self._uncached_of[engine] = self._uncached_of.get(engine, 0.0) + uncached

    def _estimate(self, now: float) -> None:
        """Update the tokens owed from the latest mean output length."""
        if now < self._estimated + _ESTIMATE_SECONDS:
            return
        self._estimated, mean = now, self.pace.mean_output
        self._owed, self._uncached_of, self._weights = {}, {}, {}
        for claim in self._claims:
            claim.owed = claim.estimate(mean)
            self._weights[claim.tenant] = claim.weight
            self._count(claim, 1)

    def _note_busy(self, now: float) -> None:
        self.pace.set_busy(self._working and len(self._claims) >= self._seats_now, now)

    @property
    def _seats_now(self) -> int:
        """Sequences that run while others wait: fewer than the limit if their contexts fill the cache."""
        return max(1, math.ceil(self._running))

    def _wait(
        self, tenant: str, priority: int, weight: float, before: float, more: int, now: float
    ) -> float | None:
        """Return the seconds until the newcomer is scheduled; None: at once, or unknown.

        Args:
            before: tokens of the requests that are submitted together with the newcomer and run before it.
            more: the number of these requests.
            now: the time in seconds.
        """
        pace, cost = self.pace.tokens_per_second, self.pace.mean_cost
        if pace is None or cost is None or len(self._claims) + more < self._seats_now:
            return None
        self._estimate(now)
        ahead = {key: owed for key, owed in self._owed.items() if key[1] <= priority}
        own = before + sum(owed for (name, _), owed in ahead.items() if name == tenant)
        weights = sum((self._weights | {tenant: weight}).values())
        work = min(before + sum(ahead.values()), own * weights / weight)
        # When a seat becomes free, the other sequences are half done on average.
        return max(0.0, work - (self._seats_now - 1) * cost / 2) / pace

    def _own_seconds(self, tokens: float) -> float:
        """Return the seconds that a sequence of ``tokens`` takes in one seat while all are occupied."""
        pace = self.pace.tokens_per_second
        return tokens * self._seats_now / pace if pace else 0.0

    def _check_places(self, share: Share, more: int, now: float) -> None:
        places = self._places
        if more <= places.room(share, now=now):
            return
        places.want(share, now=now)
        held, fair = places.holds(share), places.fair(share)
        reason = (
            f"{places.held} sequences are running or waiting, and at most {places.most} are allowed"
        )
        if fair < places.most:
            reason += f"; this tenant has {held} of its fair share of {fair}"
        below = held + more <= fair  # the next place that becomes free is its own
        raise QueueFull(reason, retry_after=SHORTEST_RETRY if below else self._retry_after(now))

    def _check_deadline(self, predicted: float, deadline: float, now: float) -> None:
        left = deadline - now
        if predicted <= left * PREDICTED_SHARE:
            return
        raise QueueFull(
            f"The answer is expected in {predicted:.1f} seconds, after the request's deadline in "
            f"{max(0.0, left):.1f} seconds; retry later or allow more time",
            retry_after=_bounded(predicted - left * PREDICTED_SHARE),
        )

    def _retry_after(self, now: float) -> float:
        """Return the expected seconds until half of the queue is gone."""
        pace = self.pace.tokens_per_second
        if pace is None or not self._claims:
            return SHORTEST_RETRY
        self._estimate(now)
        share = min(1.0, max(1.0, self._max_queue / 2) / len(self._claims))
        return _bounded(sum(self._owed.values()) * share / pace)


def _share_of(request: EngineRequest) -> Share:
    return Share(request.tenant, request.weight)


def _bounded(seconds: float) -> float:
    return min(LONGEST_RETRY, max(SHORTEST_RETRY, float(math.ceil(seconds))))
