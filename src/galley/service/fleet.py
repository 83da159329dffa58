"""The engines that serve one model: each request is given to one, and moved when that one ends."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from galley.errors import Conflict, GalleyError
from galley.service.admission import Admission
from galley.service.departures import Departures
from galley.service.fleet_plan import FleetPlan
from galley.service.frames import Blocks
from galley.service.holders import with_holder
from galley.service.links import ReplicaSource
from galley.service.process import EngineProcess
from galley.service.releases import Releases
from galley.service.replica import Replica
from galley.service.request_book import RequestBook
from galley.service.routing import ReplicaFigures
from galley.service.same_model import check_same
from galley.service.streams import Unfinished
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Output
from galley.types.engine_stats import EngineState, EngineStats, ReleaseStatus, ReplicaStatus
from galley.types.model_info import Ledger, ModelInfo

log = logging.getLogger("galley.service")


class Fleet:
    """The replicas of one model. For use in one event loop.

    Attributes:
        settings: those of an engine on this machine.
        replicas: the replicas; those on this machine first.
        book: the unfinished requests.
        info: the description of the model; None until an engine has been ready.
        releases: the releases among which requests are divided.
    """

    def __init__(self, settings: EngineSettings, plan: FleetPlan) -> None:
        """Create it; :meth:`launch` starts the engines."""
        self.settings = settings
        self.info: ModelInfo | None = None
        self._plan = plan
        self._admission = Admission(settings.running_limit * max(1, plan.replicas), plan.max_queue)
        self.book = RequestBook(self._admission, self._choose, self._spare, self._finished)
        self.releases = Releases()
        self._failures: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._planned = False
        self._started = False
        self._closed = False
        self._retired_restarts = self._retired_killed_starts = 0
        self._tasks: set[asyncio.Task[None]] = set()
        own = (self._local_source(str(number)) for number in range(plan.replicas))
        self.replicas = [self._replica(source) for source in (*own, *plan.remotes)]
        # Never launched: requests wait here while no replica can take them.
        self._parked = self._replica(self._local_source("none"))
        self._departures = Departures(
            self.replicas, self.book, self.releases, self._parked, self.changed, self._removed
        )

    def launch(self) -> None:
        """Start the engines without waiting for them; those on this machine after the first has planned."""
        for number, replica in enumerate(self.replicas):
            if not number or replica.source.remote:
                replica.launch()
        if self._plan.members is not None:
            self._run(self._plan.members(self))

    async def planned(self) -> None:
        """Wait until the first engine has reported its memory plan, or the start has ended."""
        while self.state == "starting" and not self._planned and self._plan.replicas:
            await self.change()

    async def change(self) -> None:
        """Wait until the state of a replica changes."""
        self._changed.clear()
        await self._changed.wait()

    @property
    def state(self) -> EngineState:
        """The state of the replica that is in the best one; "starting" until all have been ready."""
        if self._closed:
            return "closed"
        states = {replica.state for replica in self.replicas}
        if not self._started:
            fails = any(r.state == "failed" and not r.source.remote for r in self.replicas)
            return "failed" if fails or states == {"failed"} else "starting"
        if self._plan.members is not None and not states & {"ready", "stalled"}:
            # Others may be started at any time.
            return "ready" if self._asleep else "recovering"
        order: tuple[EngineState, ...] = ("ready", "stalled", "recovering", "starting", "failed")
        return next((state for state in order if state in states), "failed")

    @property
    def stats(self) -> EngineStats:
        """The sums of the engines' latest statistics."""
        if len(self.replicas) == 1:
            return self.replicas[0].stats
        return EngineStats.sum_of([replica.stats for replica in self.replicas])

    @property
    def restarts(self) -> int:
        """How often an engine was replaced."""
        return self._retired_restarts + sum(replica.restarts for replica in self.replicas)

    @property
    def killed_starts(self) -> int:
        """How often an engine was killed while it loaded."""
        now = sum(replica.killed_starts for replica in self.replicas)
        return self._retired_killed_starts + now

    @property
    def statuses(self) -> Sequence[ReplicaStatus]:
        """The status of each replica."""
        return [replica.status for replica in self.replicas]

    @property
    def release_statuses(self) -> Sequence[ReleaseStatus]:
        """The pending work of each release; empty without releases."""
        return self.releases.statuses(self.replicas, self.book, self._parked)

    @property
    def engine_pids(self) -> Sequence[int]:
        """The process ids of the engines that run on this machine."""
        return [replica.pid for replica in self.replicas if replica.pid is not None]

    @property
    def error(self) -> GalleyError | None:
        """Why a replica has failed."""
        return next((one.error for one in self.replicas if one.error is not None), None)

    def add(self, source: ReplicaSource) -> None:
        """Add a replica and start it, without waiting for it.

        Raises:
            Conflict: there is a replica of that name.
        """
        if any(replica.name == source.name for replica in self.replicas):
            raise Conflict(f"there is a replica {source.name} already")
        replica = self._replica(source)
        self.replicas.append(replica)
        replica.launch()

    @property
    def has_leaving(self) -> bool:
        """Whether replicas that are no longer listed still have requests."""
        return any(replica.retiring for replica in self.replicas)

    def follow(self, sources: Sequence[ReplicaSource]) -> None:
        """Have exactly these replicas elsewhere from now on; the requests of others are moved first."""
        wanted = {source.name: source for source in sources}
        for replica in self.replicas:
            source = wanted.get(replica.name)
            gone = source is None or source.release != replica.source.release
            if replica.source.remote and gone and not replica.retiring:
                replica.retiring = True
                self._run(self._departures.retire(replica))
        there = {replica.name for replica in self.replicas}
        for name, source in wanted.items():
            if name not in there:
                log.info(
                    "replica %s has joined%s", name, f" ({source.release})" * bool(source.release)
                )
                self.add(source)
        self._departures.end_orphans()
        self._changed.set()

    async def drain(self, name: str) -> None:
        """Have other replicas continue the requests of one, and remove it.

        Raises:
            RequestError: there is no such replica.
            Conflict: no other replica is ready.
        """
        await self._departures.drain(name)

    async def close(self) -> None:
        """End the engines; unfinished streams end with ``finish_reason`` "abort"."""
        self._closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(replica.close() for replica in self.replicas))
        self.book.end_all("abort", None)

    # The events of replicas, see ReplicaEvents.

    def deliver(self, replica: Replica, output: Output) -> int:
        """Deliver an Output to its reader."""
        return self.book.deliver(replica, output)

    def resumption(self, request_id: str) -> EngineRequest:
        """Return a request as it is to be sent to an engine now."""
        request = self.book.resumption(request_id)
        count, replica = self._plan.cached_tokens, self.book.replica_of(request_id)
        return request if count is None else with_holder(request, replica, self.replicas, count)

    def stepped(self, replica: Replica) -> None:
        """Record the statistics after a step."""
        self._observe()
        if self._plan.on_step is not None:
            self._plan.on_step(replica.status)

    def changed(self, replica: Replica) -> None:
        """Move requests away from a replica that no longer serves them; wake those who wait for a state."""
        if self._closed:
            return
        accepting = [one for one in self.replicas if one.accepts]
        if accepting:
            self._admission.resize(sum(one.seats for one in accepting))
        if replica.state == "stalled" and accepting:
            replica.replace("it has work but does not respond")
        elif replica.state == "failed":
            self._give_up(replica)
        elif replica.accepts:
            self._rebalance(replica)
        self._observe()
        self._changed.set()

    def engine_ready(self, replica: Replica) -> None:
        """Give a new engine the requests that wait at replicas which are not ready."""
        assert replica.info is not None
        if self.info is None:
            self.info = replica.info
            self._keep_capacity(replica.info)
        if not replica.source.remote:
            self._launch_others()
        self.book.resume(replica)
        own = [one for one in self.replicas if not one.source.remote]
        self._started = self._started or all(one.info is not None for one in own)

    def engine_died(self, replica: Replica, given_up: str | None) -> None:
        """Have other replicas continue the requests."""
        if self._plan.router is not None:
            self._plan.router.forget(replica.name)
        if given_up is not None:
            self.book.give_up(given_up)
        self.book.resume(replica)
        self.book.move(replica)

    def blocks_changed(self, replica: Replica, blocks: Blocks) -> None:
        """Pass on a change of what a prefix cache holds."""
        if self._plan.on_blocks is not None:
            self._plan.on_blocks(blocks)

    def leaving(self, replica: Replica) -> None:
        """Move the requests of a replica that is about to end; it may come back."""
        log.info("replica %s is leaving", replica.name)
        replica.draining = True
        self.book.move(replica)  # before anything else is read from it
        self._run(self._departures.hand_over(replica))

    def check(self, info: ModelInfo) -> None:
        """Raise ModelError if an engine serves another model than the other replicas."""
        if self.info is not None:
            check_same(self.info, info)

    def phase_ended(self, replica: Replica, name: str, seconds: float) -> None:
        """Report the duration of a start-up phase; phases of several engines overlap."""
        if self._plan.on_phase and replica is self.replicas[0]:
            self._plan.on_phase(name, seconds)

    def planned_memory(self, replica: Replica, ledger: Ledger) -> None:
        """Report the memory plan of an engine that starts."""
        if self._plan.on_ledger:
            self._plan.on_ledger(ledger)
        if not self._planned and self._plan.replicas > 1:
            self._plan.check_memory(ledger)
            if ledger.kv_tokens:
                self.settings = dataclasses.replace(self.settings, kv_cache_tokens=ledger.kv_tokens)
            self._launch_others()
        self._planned = True
        self._changed.set()

    def _replica(self, source: ReplicaSource) -> Replica:
        return Replica(source, self, self._plan.watchdog, self._failures)

    def _local_source(self, name: str) -> ReplicaSource:
        seats = self.settings.running_limit
        return ReplicaSource(
            name=name,
            connect=self._start_engine,
            seats=seats,
            has_others=self._plan.router is not None,
            contents=self._plan.contents,
        )

    async def _start_engine(self) -> EngineProcess:
        return await EngineProcess.start(
            self._plan.begin(),
            self.settings,
            self._plan.folder,
            self._plan.promised(),
            publishes=self._plan.router is not None or self._plan.on_blocks is not None,
            publishes_tokens=self._plan.publishes_tokens,
            transfer=self._plan.transfer,
        )

    def _launch_others(self) -> None:
        """Start the further engines on this machine, which have the capacity of the first."""
        for replica in self.replicas:
            if not replica.source.remote and replica.is_idle:
                replica.launch()

    def _keep_capacity(self, info: ModelInfo) -> None:
        """Have any later engine offer the same capacity as the first."""
        if (text := info.text) is not None:
            size: dict[str, Any] = {"kv_cache_tokens": text.kv_cache_tokens}
            if not text.kv_cache_tokens:
                size = {"max_model_len": text.max_model_len}
            self.settings = dataclasses.replace(self.settings, **size)

    def _choose(self, request: EngineRequest, version: str | None) -> tuple[Replica, int] | None:
        """Return the replica that gets a request, and the tokens of the prompt that it should have cached.

        None: none is ready that may continue the request.
        """
        ready = [one for one in self.replicas if one.accepts and version in (None, one.version)]
        if version is None and self.releases.shares:
            release = self.releases.of(request, {one.source.release for one in ready})
            ready = [one for one in ready if one.source.release == release]
        if len(ready) < 2 or self._plan.router is None:
            return (ready[0], 0) if ready else None
        now = time.monotonic()
        candidates = [
            ReplicaFigures(
                name=one.name,
                owed=self._admission.uncached_of(one.name),
                pace=one.pace.tokens_per_second,
                blocks=one.blocks,
                silent=now - one.last_frame_at if one.requests.quarantine.working else 0.0,
            )
            for one in ready
        ]
        choice = self._plan.router.choose(request, candidates)
        return ready[choice.candidate], choice.cached

    def _spare(self) -> Replica:
        """Return a replica at which a request can wait until one is ready."""
        if self._plan.members is not None:
            return self._parked
        return min(self.replicas, key=lambda one: (one.state in ("failed", "closed"), one.draining))

    def _rebalance(self, ready: Replica) -> None:
        """Have a replica that has become ready continue the requests of those that are not."""
        for other in (*self.replicas, self._parked):
            if other.state == "stalled":
                other.replace("it has work but does not respond")
            elif other is not ready and not other.accepts:
                self.book.move(other)

    def _give_up(self, replica: Replica) -> None:
        """End the requests of a replica that has failed, if no other can continue them."""
        # The only engine's failure to start is reported by the caller of the start.
        if self._started or len(self.replicas) > 1:
            log.error("replica %s has failed: %s", replica.name, replica.error)
        self.book.move(replica)
        if self.state != "failed":
            self.book.end_of(replica, "error", f"the engine is down: {replica.error}")
        else:
            self.book.end_all("error", f"the engine is down: {replica.error}")

    def _removed(self, replica: Replica) -> None:
        self._retired_restarts += replica.restarts
        self._retired_killed_starts += replica.killed_starts
        if self._plan.router is not None:
            self._plan.router.forget(replica.name)
        self._changed.set()

    @property
    def _asleep(self) -> bool:
        """Whether there are no replicas because there were no requests."""
        return not self.replicas and bool(self.releases.sleeping)

    def _finished(self, unfinished: Unfinished, output: Output) -> None:
        if self._plan.on_finished is not None and unfinished.release:
            self._plan.on_finished(
                unfinished.release,
                output.finish_reason or "",
                len(unfinished.tokens),
                unfinished.first_token - unfinished.submitted,
                time.monotonic() - unfinished.submitted,
            )

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _observe(self) -> None:
        working = [one for one in self.replicas if one.state == "ready"]
        running = sum(one.stats.running for one in working)
        waiting = sum(one.stats.waiting for one in working)
        stats = EngineStats(running=running, waiting=waiting)
        self.book.observe(stats, working=bool(working))
