"""The simulation of events: requests that arrive, steps that end, replicas that are lost."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from galley.plan.cluster.engine import Engine
from galley.plan.cluster.fleet import Fleet
from galley.plan.cluster.replica import Clock, Job, Replica
from galley.plan.cluster.routers import ROUTERS
from galley.plan.cluster.scalers import SCALERS, Bounds, Scaler
from galley.plan.cluster.traffic import Traffic
from galley.service.routing import Router
from galley.types import BLOCK_TOKENS, Generate
from galley.types.block_hashes import HashChain, salt_hash

QUANTILES: Final = ("p50", "p90", "p95", "p99")


class Scaling(NamedTuple):
    """An autoscaler by its name in :data:`SCALERS`, and its bounds."""

    scaler: str
    bounds: Bounds


class Loss(NamedTuple):
    """So many replicas end once ``after`` requests have been sent, and do not come back."""

    replicas: int
    after: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas served the traffic.

    Attributes:
        machine, router, scaler: what was simulated; ``scaler`` is "" without an autoscaler.
        replicas: at the same time, at most.
        mean_replicas: that have to be paid, on average, those that start or drain included.
        timeline: (seconds, replicas that serve) at the start and after each change.
        lost: replicas lost on the way.
        requests: answered in full.
        refused: too long for the context or the KV cache.
        moved: continued on another replica after theirs was lost.
        seconds: until the last answer.
        ttft_s, tpot_s: "mean" and quantiles over requests; TPOT is over answers of two tokens or more.
        cached_share: share of the prompts' tokens that were in the cache of the replica.
        output_tokens_per_s: of all replicas.
        price_per_hour: of all replicas, lost ones included, or of the mean number with an autoscaler, in
            US dollars; None without a price.
    """

    machine: str
    router: str
    scaler: str
    replicas: int
    mean_replicas: float
    timeline: list[tuple[float, int]]
    lost: int
    requests: int
    refused: int
    moved: int
    seconds: float
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    cached_share: float
    output_tokens_per_s: float
    price_per_hour: float | None


def simulate(
    engine: Engine,
    replicas: int,
    router: str,
    traffic: Traffic,
    loss: Loss | None = None,
    scaling: Scaling | None = None,
) -> Outcome:
    """Return how replicas serve the traffic. The same arguments give the same outcome.

    Args:
        engine: of each replica.
        replicas: when the traffic begins; at least 1, and more than are lost.
        router: name of one of :data:`ROUTERS`.
        traffic: the requests.
        loss: replicas that are lost on the way.
        scaling: changes the number of replicas.
    """
    assert replicas > (loss.replicas if loss else 0)
    run = _Run(engine, replicas, ROUTERS[router](0), traffic, scaling)
    run.work(loss)
    return run.outcome(router, loss.replicas if loss else 0)


@dataclass(order=True, slots=True)
class _Event:
    """Something that happens: a request is sent, the steps of a replica end, or else."""

    time: float
    number: int
    request: int | None = field(default=None, compare=False)
    replica: Replica | None = field(default=None, compare=False)
    action: Callable[[], None] | None = field(default=None, compare=False)


class _Run:
    """One simulation."""

    def __init__(
        self,
        engine: Engine,
        replicas: int,
        router: Router,
        traffic: Traffic,
        scaling: Scaling | None,
    ) -> None:
        self._engine = engine
        self._traffic = traffic
        self._router = router
        self._clock = Clock()
        self._fleet = Fleet(engine, traffic, self._clock, replicas)
        self._scaling = scaling
        self._lost: set[Replica] = set()
        self._events: list[_Event] = []
        self._numbers = 0
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._refused = self._moved = 0
        self._ended = 0.0
        for index, turn in enumerate(traffic.turns):
            if turn.after is None:
                self._schedule(turn.due + engine.overhead, request=index)
        if scaling is not None:
            self._decide(scaling, SCALERS[scaling.scaler](scaling.bounds))

    def work(self, loss: Loss | None) -> None:
        """Go through the events until all requests have ended."""
        sent = 0
        while len(self._ttft) + self._refused < len(self._traffic):
            event = heapq.heappop(self._events)
            self._clock.now = event.time
            replica = event.replica
            if event.action is not None:
                event.action()
            elif event.request is not None:
                self._send(event.request, event.time)
                sent += 1
                if loss is not None and sent == loss.after:
                    self._lose(loss.replicas, event.time)
            # Steps may have been cut short, or lost, since the event was scheduled.
            elif replica is not None and event.time == replica.due and replica not in self._lost:
                self._finish(replica, event.time)

    def outcome(self, router: str, lost: int) -> Outcome:
        """Return the figures."""
        price = self._engine.machine.price
        mean = self._fleet.mean
        most = max(count for _, count in self._fleet.timeline)
        paid = most if self._scaling is None else mean
        return Outcome(
            machine=self._engine.machine.name,
            router=router,
            scaler=self._scaling.scaler if self._scaling is not None else "",
            replicas=most,
            mean_replicas=mean,
            timeline=self._fleet.timeline,
            lost=lost,
            requests=len(self._ttft),
            refused=self._refused,
            moved=self._moved,
            seconds=self._ended,
            ttft_s=_quantiles(self._ttft),
            tpot_s=_quantiles(self._tpot),
            cached_share=self._cached_tokens / max(1, self._prompt_tokens),
            output_tokens_per_s=self._output_tokens / self._ended if self._ended else 0.0,
            price_per_hour=None if price is None else price * paid,
        )

    def _schedule(
        self,
        time: float,
        *,
        request: int | None = None,
        replica: Replica | None = None,
        action: Callable[[], None] | None = None,
    ) -> None:
        self._numbers += 1
        heapq.heappush(self._events, _Event(time, self._numbers, request, replica, action))

    def _decide(self, scaling: Scaling, scaler: Scaler) -> None:
        """Have the autoscaler decide now, and again after its interval."""
        fleet, bounds, now = self._fleet, scaling.bounds, self._clock.now
        wanted = scaler.wanted(fleet.load(), fleet.current, now)
        wanted, due = min(bounds.most, max(bounds.least, wanted)), now + bounds.start
        for _ in range(wanted - fleet.current):
            fleet.begin(due)
            self._schedule(due, action=partial(fleet.started, due))
        for replica in fleet.shrink(max(0, fleet.current - wanted)):
            self._router.forget(replica.name)
        self._schedule(now + scaler.interval, action=partial(self._decide, scaling, scaler))

    def _send(self, index: int, now: float) -> None:
        if self._is_too_long(index):
            self._refused += 1
            self._send_next(index, now)
            return
        prompt = self._traffic.turns[index].line.input_length
        sent = now - self._engine.overhead
        self._route(Job(index, sent, prompt, self._traffic.output(index), ()), now)

    def _is_too_long(self, index: int) -> bool:
        prompt = self._traffic.turns[index].line.input_length
        return prompt + self._traffic.output(index) > self._engine.longest

    def _route(self, job: Job, now: float) -> None:
        request = self._traffic.request(job.index, job.done)
        assert isinstance(request.payload, Generate)
        if not job.chain:
            blocks = job.prompt // BLOCK_TOKENS
            chain = HashChain(salt_hash(request.cache_salt))
            job.chain = chain.upto(request.payload.prompt, blocks)
        choice = self._router.choose(request, self._fleet.serving)
        replica, job.expected = self._fleet.serving[choice.candidate], choice.cached
        before = replica.due
        replica.add(job, now)
        if replica.due is not None and replica.due != before:
            self._schedule(replica.due, replica=replica)

    def _finish(self, replica: Replica, now: float) -> None:
        for job in replica.finish():
            self._end(job, replica, now)
        if replica.due is not None:
            self._schedule(replica.due, replica=replica)
        else:
            self._fleet.idle(replica)

    def _end(self, job: Job, replica: Replica, now: float) -> None:
        assert job.first is not None
        assert job.cached is not None
        self._ttft.append(job.first - job.sent)
        if job.output > 1:
            self._tpot.append((now - job.first) / (job.output - 1))
        self._prompt_tokens += job.prompt
        self._cached_tokens += job.cached
        self._output_tokens += job.output
        self._ended = max(self._ended, now)
        following = self._send_next(job.index, now)
        if following is not None and not self._is_too_long(following):
            self._keep_answer(job, replica, following)

    def _send_next(self, index: int, now: float) -> int | None:
        """Send the turn that waited for this one, and return its index; None if there is none."""
        following = self._traffic.next_turn.get(index)
        if following is not None:
            turn = self._traffic.turns[following]
            sent = max(turn.due, now + turn.pause)
            self._schedule(sent + self._engine.overhead, request=following)
        return following

    def _keep_answer(self, job: Job, replica: Replica, following: int) -> None:
        """Put in the cache the blocks of an answer with which the next turn's prompt continues."""
        request = self._traffic.request(following)
        assert isinstance(request.payload, Generate)
        blocks = min(request.payload.reads, job.prompt + job.output) // BLOCK_TOKENS
        chain = HashChain(salt_hash(request.cache_salt)).upto(request.payload.prompt, blocks)
        if chain[: len(job.chain)] == job.chain:
            replica.keep(chain)

    def _lose(self, count: int, now: float) -> None:
        lost = self._fleet.lose(count)
        self._lost.update(lost)
        for replica in lost:
            self._router.forget(replica.name)
        for replica in lost:
            for job in replica.lost(now):
                self._moved += 1
                self._route(job, now)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the quantiles by name, 0 for no values."""
    if not values:
        return dict.fromkeys(("mean", *QUANTILES), 0.0)
    found = np.quantile(np.array(values), [int(name[1:]) / 100 for name in QUANTILES])
    named = zip(QUANTILES, map(float, found), strict=True)
    return {"mean": float(np.mean(values)), **dict(named)}
