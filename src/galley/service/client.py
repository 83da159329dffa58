"""The client of a model's engines: submits requests, and moves them when an engine dies.

When an engine dies, a new one is started and every unfinished request (``request_book.py``) is
resubmitted with the tokens that it already has, to another engine if one is ready. Since noise is a
function of seed and position, its text continues as it would have without that.
"""

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from galley.errors import EngineFailed, EngineNotReady, QueueFull, SettingsError
from galley.service.fleet import Fleet
from galley.service.fleet_plan import FleetPlan
from galley.service.frames import UnloadAdapter
from galley.service.prefill import PrefillPool
from galley.service.spawn import Spawned, spawn
from galley.service.streams import LONGEST_WAIT, OutputStream
from galley.service.turns import Share
from galley.service.watchdog import Watchdog
from galley.settings.engine import EngineSettings
from galley.types import Adapter, EngineRequest, OnPhase
from galley.types.engine_stats import EngineState, EngineStats, ReleaseStatus, ReplicaStatus
from galley.types.model_info import ModelInfo

STALL_SECONDS: Final = 10.0
STEP_TIMEOUT: Final = 600.0
"""Default limits of a :class:`Watchdog`, in seconds."""


class EngineClient:
    """The client of the engines of one model. For use in one event loop.

    Create it with :meth:`start`, or construct it and then call :meth:`launch` and :meth:`ready`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        folder: str,
        *,
        max_queue: int,
        begin: Callable[[], Spawned] | None = None,
        watchdog: Callable[[], Watchdog] = lambda: Watchdog(STALL_SECONDS, STEP_TIMEOUT),
        prefill: PrefillPool | None = None,
        **others: Any,
    ) -> None:
        """Create it; :meth:`launch` starts the engines.

        Args:
            settings: the settings of an engine; a server's other settings are not passed on to it.
            folder: the checkpoint's folder.
            max_queue: sequences that may wait in addition to the running ones.
            begin: spawns an engine process.
            watchdog: creates the watchdog of an engine.
            prefill: computes long prompts, whose blocks the engines then fetch.
            others: further attributes of :class:`FleetPlan`.
        """
        names = [f.name for f in dataclasses.fields(EngineSettings)]
        # Only these fields: the server's settings contain API keys, which the engine must not receive.
        own = EngineSettings(**{name: getattr(settings, name) for name in names})
        plan = FleetPlan(
            folder=folder,
            max_queue=max_queue,
            begin=begin or (lambda: spawn(settings.engine_name)),
            watchdog=watchdog,
            **others,
        )
        self.fleet = Fleet(own, plan)
        self._book = self.fleet.book
        self._prefill = prefill

    @classmethod
    async def start(
        cls,
        settings: EngineSettings,
        folder: str,
        *,
        max_queue: int,
        on_phase: OnPhase | None = None,
        **others: Any,
    ) -> "EngineClient":
        """Start the engines for the checkpoint in ``folder`` and wait until they are ready.

        ``others``: further arguments of the constructor.

        Raises:
            ModelError, SettingsError: the model or the settings cannot be used.
            EngineFailed: the engine could not start.
        """
        client = cls(settings, folder, max_queue=max_queue, on_phase=on_phase, **others)
        client.launch()
        try:
            await client.ready()
        except BaseException:
            await client.close()
            raise
        return client

    def launch(self) -> None:
        """Start the engines without waiting for them."""
        self.fleet.launch()
        if self._prefill is not None:
            self._prefill.launch()

    async def planned(self) -> None:
        """Wait until the first engine has reported its memory plan, or the start has ended."""
        await self.fleet.planned()

    async def ready(self) -> ModelInfo:
        """Wait until the engines are ready. Raises the errors of :meth:`start`.

        Of replicas elsewhere, one has to be ready, unless there are others on this machine.
        """
        while self.state in ("starting", "recovering"):
            await self.fleet.change()
        if (error := self.fleet.error) is not None and self.state == "failed":
            raise error
        if self.state == "closed":
            raise EngineFailed("the engine was closed")
        return self.info

    @property
    def info(self) -> ModelInfo:
        """The description of the loaded model. Raises EngineNotReady until an engine has been ready."""
        if self.fleet.info is None:
            raise EngineNotReady("the engine is starting", retry_after=1.0)
        return self.fleet.info

    @property
    def state(self) -> EngineState:
        """The state of the replica that is in the best one."""
        return self.fleet.state

    @property
    def stats(self) -> EngineStats:
        """The sums of the engines' latest statistics."""
        return self.fleet.stats

    @property
    def restarts(self) -> int:
        """How often an engine was replaced."""
        return self.fleet.restarts

    @property
    def killed_starts(self) -> int:
        """How often an engine was killed while it loaded."""
        return self.fleet.killed_starts

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The status of each replica."""
        return self.fleet.statuses

    @property
    def releases(self) -> Sequence[ReleaseStatus]:
        """The pending work of each release of the model; empty without releases."""
        return self.fleet.release_statuses

    @property
    def engine_pids(self) -> Sequence[int]:
        """The process ids of the engines that run on this machine."""
        return self.fleet.engine_pids

    @property
    def in_flight(self) -> int:
        """The number of unfinished sequences."""
        return len(self._book)

    @property
    def backlog(self) -> float:
        """The seconds until a newcomer would be scheduled; 0 also if that is unknown."""
        return self._book.backlog

    def submit(self, request: EngineRequest) -> OutputStream:
        """Start one sequence; see :meth:`submit_all`."""
        return self.submit_all([request])[0]

    def check_place(self, deadline: float, share: Share) -> None:
        """Raise the errors of :meth:`submit_all` that are certain before a tenant's request is read."""
        self._check_state()
        self._book.check_place(share, deadline)

    def check_early(self, deadline: float, share: Share, priority: int) -> None:
        """Raise the errors of :meth:`submit_all` that are certain before any work is done for a request.

        Args:
            deadline: as for :meth:`submit_all`.
            share: the tenant's share.
            priority: the request's priority.
        """
        self._check_state()
        self._book.check_early(share, priority, deadline)

    def room(self, share: Share) -> int:
        """Return how many sequences the tenant may submit at once."""
        return self._book.room(share)

    def submit_all(
        self, requests: Sequence[EngineRequest], deadline: float = math.inf
    ) -> list[OutputStream]:
        """Start all of the requests or none. Modules such as ``requests.py`` make and check them.

        While no engine is ready because one is being restarted, requests are accepted and wait.

        Args:
            requests: the requests of one caller.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded, and the engine drops their requests.

        Raises:
            QueueFull: too many sequences are waiting, or the answers are expected after the deadline; the
                error states when to retry.
            DeadlineExceeded: the deadline has passed.
            Conflict: two unfinished requests would have the same id.
            EngineNotReady: the engine has not been ready yet, or is closed.
            EngineFailed: the engine has given up.
            RequestError: the requests name a release that there is not.
        """
        self._check_state()
        requests = self.fleet.releases.pinned(requests)
        if self._prefill is None:
            return self._book.take(requests, deadline)
        self._book.check(requests, deadline)
        held = [replica.blocks for replica in self.fleet.replicas]
        long = [one for one in requests if self._prefill.wants(one, held)]
        elsewhere = {one.id: partial(self._prefill.compute, one, deadline) for one in long}
        return self._book.take(requests, deadline, elsewhere)

    async def submit_when_room(
        self, requests: Sequence[EngineRequest], deadline: float = math.inf
    ) -> list[OutputStream]:
        """Submit like :meth:`submit_all`, but wait while the queue is full; for work already begun."""
        while True:
            try:
                return self.submit_all(requests, deadline)
            except QueueFull as full:
                await asyncio.sleep(min(LONGEST_WAIT, full.retry_after))

    async def load_adapter(self, adapter: Adapter) -> None:
        """Have the engines read and check a LoRA adapter; requests may then name it.

        An engine that is not connected reads it with the first request that names it.

        Raises:
            ModelError: the adapter cannot be used.
            SettingsError: the model takes no adapters.
            EngineNotReady, EngineFailed: no engine is running, or it ended while it loaded the adapter.
        """
        self._check_state()
        if self.info.text is None or not self.info.text.adapters:
            raise SettingsError(
                f"{self.info.name} was started without adapters; start it with --max-adapters or --adapter"
            )
        ready = [
            r for r in self.fleet.replicas if r.is_connected and r.state in ("ready", "stalled")
        ]
        if not ready:
            raise EngineNotReady("the engine is being restarted", retry_after=1.0)
        await asyncio.gather(*(replica.adapters.load(adapter, replica.send) for replica in ready))

    def unload_adapter(self, adapter: Adapter) -> None:
        """Have the engines free an adapter; requests that already use it run to completion."""
        for replica in self.fleet.replicas:
            if replica.state in ("ready", "stalled"):
                replica.send(UnloadAdapter(adapter))

    async def drain(self, name: str) -> None:
        """Have the other replicas continue the requests of one; see :meth:`Fleet.drain`."""
        await self.fleet.drain(name)

    async def close(self) -> None:
        """Stop the engines; unfinished streams end with ``finish_reason`` "abort"."""
        await self.fleet.close()
        if self._prefill is not None:
            await self._prefill.close()

    def _check_state(self) -> None:
        state = self.state
        if state == "failed":
            raise EngineFailed(f"the engine is down: {self.fleet.error}")
        if state in ("starting", "closed"):
            raise EngineNotReady(f"the engine is {state}", retry_after=1.0)
