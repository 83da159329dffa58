"""One engine that serves a model: its process or connection, started again whenever it ends."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from galley.errors import EngineFailed, GalleyError, SettingsError
from galley.machine import oom_kills
from galley.service.engine_requests import EngineRequests
from galley.service.frames import (
    Abort,
    AdapterLoaded,
    Alive,
    Blocks,
    FromEngine,
    Leaving,
    Phase,
    Planned,
    Ready,
    Step,
    Submit,
    ToEngine,
)
from galley.service.links import EngineLink, ReplicaSource
from galley.service.loading_adapters import LoadingAdapters
from galley.service.pace import Pace
from galley.service.replica_events import ReplicaEvents
from galley.service.replica_version import version_of
from galley.service.unread import leave_time_to_others
from galley.service.watchdog import Watchdog
from galley.types.engine_stats import EngineState, EngineStats, ReplicaStatus
from galley.types.model_info import ModelInfo, TransferInfo

log = logging.getLogger("galley.service")

MAX_FAILED_STARTS: Final = 5
"""Consecutive failed engine starts after which a replica without others gives up."""

FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 8.0
"""Delay before the second attempt; it doubles with each further attempt, up to the longest."""

RETRY_AFTER_SHORTAGE: Final = 2.0
"""Delay in seconds before another attempt if no process could be started."""

WATCH_SECONDS: Final = 0.25

MOST_STARTS_WITHOUT_MEMORY: Final = 2
"""First loads that the kernel may end for lack of memory before the replica gives up."""

KILLED_WHILE_LOADING: Final = (
    "the engine was killed twice while loading, {cause} (see the kernel's log). "
    "Use a smaller --weight-dtype (int8, int4), lower --kv-cache-tokens, or give the machine or "
    "container more memory"
)

Start = Literal["ready", "failed", "killed"]
"""How an engine's start ended; "killed": by SIGKILL from outside, which says nothing about the model."""


class Replica:
    """One engine as the model's client sees it. For use in one event loop.

    Attributes:
        requests: the requests that it has or that wait for it.
        adapters: the adapters that it loads.
        state: whether it accepts requests.
        stats: the latest statistics of the engine.
        stores: whether the engine is still writing files for the next start.
        restarts: how often its engine was replaced.
        killed_starts: how often its engine was killed while it loaded.
        info: the description of the model; None until an engine has been ready.
        error: why it has failed.
        version: digest of everything that texts depend on; empty until an engine has been ready.
        pace: its measured throughput.
        blocks: keys of the blocks that its prefix cache holds.
        draining: whether it gets no new requests.
        retiring: whether it is to be removed, and gets no new requests.
        seats: sequences that run at the same time.
        last_frame_at: when the last frame arrived, on the monotonic clock.
    """

    def __init__(
        self,
        source: ReplicaSource,
        events: ReplicaEvents,
        watchdog: Callable[[], Watchdog],
        failures: dict[str, int],
    ) -> None:
        """Create it; :meth:`launch` starts its engine.

        Args:
            source: where the engine comes from.
            events: the owner.
            watchdog: creates the watchdog of an engine.
            failures: see :class:`EngineRequests`.
        """
        self.source = source
        self.name = source.name
        self.requests = EngineRequests(self._send, events.resumption, failures)
        self.adapters = LoadingAdapters()
        self.state: EngineState = "starting"
        self.stats = EngineStats()
        self.stores = False
        self.restarts = 0
        self.killed_starts = 0
        self.info: ModelInfo | None = None
        self.error: GalleyError | None = None
        self.version = ""
        self.pace = Pace()
        self.blocks: set[bytes] = set()
        self.draining = False
        self.retiring = False
        self.last_frame_at = 0.0
        self.seats = source.seats
        self._events = events
        self._new_watchdog = watchdog
        self._watchdog = watchdog()
        self._link: EngineLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._phases: dict[str, float] = {}
        self._oom_kills: int | None = None
        self._starts_without_memory = 0
        self._hung = False
        self._replaced = False

    def launch(self) -> None:
        """Start the engine without waiting for it."""
        self._task = asyncio.create_task(self._supervise(), name=f"galley-replica-{self.name}")

    @property
    def is_idle(self) -> bool:
        """Whether it has yet to be launched."""
        return self._task is None

    @property
    def is_connected(self) -> bool:
        """Whether there is an engine to send frames to."""
        return self._link is not None

    @property
    def accepts(self) -> bool:
        """Whether new requests may be sent to it now."""
        return self.state == "ready" and not (self.draining or self.retiring)

    @property
    def offers(self) -> TransferInfo | None:
        """Where its engine offers blocks; None: it does not, or not now."""
        here = None if self.info is None else self.info.transfers
        return here if here is not None and here.port and self.state == "ready" else None

    @property
    def fetches(self) -> bool:
        """Whether its engine fetches the blocks of peers that requests name."""
        here = None if self.info is None else self.info.transfers
        return here is not None and here.role in ("decode", "both")

    @property
    def pid(self) -> int | None:
        """The engine's process id, if one is running on this machine."""
        return self._link.pid if self._link else None

    @property
    def status(self) -> ReplicaStatus:
        """The state for metrics and for people."""
        return ReplicaStatus(
            name=self.name,
            state="draining" if self.draining and self.state != "closed" else self.state,
            stats=self.stats,
            restarts=self.restarts,
            killed_starts=self.killed_starts,
            pid=self.pid,
            version=self.version,
            remote=self.source.remote,
            release=self.source.release,
            stores=self.stores,
        )

    def send(self, frame: ToEngine) -> None:
        """Send a frame to the engine; without one it is dropped."""
        if self._link is not None:
            self._link.send(frame)

    def replace(self, reason: str) -> None:
        """End an engine that does not respond, through no fault of its requests; another is started."""
        if self._link is not None and not self._replaced:
            log.error("replica %s: %s; ending its engine", self.name, reason)
            self._replaced = True
            self._link.kill()

    async def close(self) -> None:
        """End the engine, and start no other."""
        self._set_state("closed")
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._close_link()

    def _send(self, frame: Submit | Abort) -> int:
        """Send a frame; return the frames sent so far, this one included, or 0 without an engine."""
        if self._link is None:
            return 0
        self._link.send(frame)
        return self._link.frames_sent

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._note_busy()
        self._events.changed(self)

    def _note_busy(self) -> None:
        busy = self.state == "ready" and self.stats.running > 0 and self.stats.waiting > 0
        full = self.stats.running >= self.seats
        self.pace.set_busy(busy or (self.state == "ready" and full), time.monotonic())

    async def _supervise(self) -> None:
        """Start engines until one cannot start, or until the replica is closed.

        Starts that ended with a kill from outside do not count: whoever killed them may stop doing so.
        """
        try:
            failed_starts = killed_starts = 0
            while failed_starts < MAX_FAILED_STARTS or self._keeps_trying:
                if tries := failed_starts + killed_starts:
                    delay = FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 8)
                    await asyncio.sleep(min(LONGEST_RETRY_SECONDS, delay))
                try:
                    start = await self._one_engine()
                except OSError as error:
                    # Out of descriptors, processes or memory, or unreachable: this can pass.
                    if not (self.source.remote and failed_starts):
                        log.error("replica %s: cannot start (%s); trying again", self.name, error)
                    if self.source.remote:
                        failed_starts += 1
                    else:
                        await asyncio.sleep(RETRY_AFTER_SHORTAGE)
                    continue
                self.restarts += 1
                if start == "ready":
                    failed_starts = killed_starts = 0
                elif start == "killed":
                    killed_starts += 1
                else:
                    failed_starts += 1
            self._fail(EngineFailed(f"the engine failed to start {failed_starts} times in a row"))
        except Exception as error:
            if not isinstance(error, GalleyError):
                log.exception("the supervisor failed")
            self._fail(error)

    @property
    def _keeps_trying(self) -> bool:
        """Whether failed starts may pass: others serve meanwhile, and the model has been loaded before."""
        return self.source.remote or (self.source.has_others and self.info is not None)

    async def _one_engine(self) -> Start:
        """Run one engine from start to end; return how its start ended.

        Raises:
            GalleyError: it cannot start, and no engine has started before: trying again will not help.
            OSError: the process could not be created, or the address not be reached.
        """
        reason: object = None
        self._replaced = False
        self._oom_kills = oom_kills()
        try:
            self._link = await self.source.connect()
        except OSError:
            if self.info is None and not self.source.remote:
                raise EngineFailed(
                    "cannot start the engine process; see the server's log"
                ) from None
            raise
        except SettingsError as error:
            if self.info is None:
                raise
            raise ConnectionRefusedError(str(error)) from error
        watching = asyncio.create_task(self._watch(self._link))
        try:
            async for frames in self._link.frames():
                for frame in frames:
                    self._handle(frame)
                await leave_time_to_others()
        except GalleyError as error:
            if self.info is None:
                await self._close_link()
                raise
            reason = error
        except OSError as error:
            reason = error
        finally:
            watching.cancel()
        return await self._ended(reason)

    async def _ended(self, reason: object) -> Start:
        """Record that the engine has ended; return how its start had ended."""
        was_ready = self.state in ("ready", "stalled")
        # Before the first await: nothing may be sent to this engine from here on.
        link, self._link = self._link, None
        self.requests.quarantine.engine_away()
        self.adapters.lost()
        self._events.blocks_changed(self, Blocks([], list(self.blocks)))
        self.blocks.clear()
        self.stats, self.stores = self.stats.without_engine(), False
        if was_ready:
            self._set_state("recovering")
        status = await link.close() if link else None
        # A hanging engine is at fault itself; any other SIGKILL mostly comes from outside.
        killed = status == -signal.SIGKILL and not self._hung
        blameless = self.source.remote or self._replaced
        self._hung = False
        if was_ready:
            given_up = None
            if blameless:
                self.requests.quarantine.engine_lost()
            else:
                given_up = self.requests.quarantine.engine_died(killed=killed)
            self._events.engine_died(self, given_up)
            self._starts_without_memory = 0
        elif killed:
            self._killed_while_loading()
            return "killed"
        what = "connection" if self.source.remote else "engine process"
        log.error("the %s of replica %s ended (%s)", what, self.name, reason or f"status {status}")
        return "ready" if was_ready else "failed"

    def _killed_while_loading(self) -> None:
        """Record that the engine was killed before it was ready, and log the likely cause.

        Raises:
            EngineFailed: there is not enough memory for a model that has never been loaded.
        """
        self.killed_starts += 1
        now = oom_kills()
        if now is None or self._oom_kills is None:
            lacks_memory, cause = True, "most likely for lack of memory"
        elif now > self._oom_kills:
            lacks_memory, cause = True, "by the kernel for lack of memory"
        else:
            lacks_memory, cause = False, "by another process: the kernel reports no lack of memory"
        self._starts_without_memory += lacks_memory
        if self.info is None and self._starts_without_memory == MOST_STARTS_WITHOUT_MEMORY:
            raise EngineFailed(KILLED_WHILE_LOADING.format(cause=cause))
        log.error(
            "the engine process of replica %s was killed while loading, %s; trying again (%d such starts)",
            self.name,
            cause,
            self.killed_starts,
        )

    async def _watch(self, link: EngineLink) -> None:
        """Check that the engine makes progress; kill it if it hangs."""
        watchdog = self._watchdog = self._new_watchdog()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self.state not in ("ready", "stalled"):
                continue
            verdict = watchdog.verdict(time.monotonic(), working=self.requests.quarantine.working)
            if verdict == "hung":
                log.error("the engine exceeded --step-timeout in a step; killing it")
                self._hung = True
                link.kill()
                return
            if verdict == "stalled" and self.state == "ready":
                log.warning(
                    "the engine has work but does not respond; its process may be stopped or starved of CPU"
                )
                self._set_state("stalled")

    async def _close_link(self) -> None:
        link, self._link = self._link, None
        if link:
            await link.close()

    def _fail(self, error: Exception) -> None:
        self.error = error if isinstance(error, GalleyError) else EngineFailed(str(error))
        self._set_state("failed")

    def _handle(self, frame: FromEngine) -> None:
        seconds = 0.0
        if isinstance(frame, Alive):
            seconds, self.stores = frame.step_seconds, frame.stores
        self.last_frame_at = time.monotonic()
        self._watchdog.report(self.last_frame_at, seconds)
        if self.state == "stalled":
            self._set_state("ready")
        if isinstance(frame, Step):
            self._stepped(frame)
        elif isinstance(frame, Blocks):
            self.blocks.difference_update(frame.removed)
            self.blocks.update(frame.stored)
            self._events.blocks_changed(self, frame)
        elif isinstance(frame, Phase):
            self._phases[frame.name] = frame.seconds
            self._events.phase_ended(self, frame.name, frame.seconds)
        elif isinstance(frame, Planned):
            self._events.planned_memory(self, frame.ledger)
        elif isinstance(frame, Leaving):
            self._events.leaving(self)
        elif isinstance(frame, AdapterLoaded):
            self.adapters.loaded(frame)
        elif isinstance(frame, Ready):
            self._become_ready(frame)

    def _stepped(self, frame: Step) -> None:
        for output in frame.outputs:
            computed = self._events.deliver(self, output)
            self.pace.worked(computed, self.last_frame_at)
        self.stats = frame.stats
        self._note_busy()
        self._events.stepped(self)
        self.requests.stepped(frame.frames_seen)

    def _become_ready(self, frame: Ready) -> None:
        listed = self.source.release
        if listed and frame.release not in ("", listed):
            # The address was that of a replica that has gone, and the list of replicas is behind.
            raise ConnectionRefusedError(f"the replica is of release {frame.release}, not {listed}")
        self._events.check(frame.info)
        self.stats, self.stores = frame.stats, frame.stores
        self.seats = frame.seats or self.seats
        self.draining = self.draining and not self.source.remote
        total = sum(s for name, s in self._phases.items() if name != "ready")
        self._phases["ready"] = total
        self._events.phase_ended(self, "ready", total)
        self.info = msgspec.structs.replace(frame.info, phases=dict(self._phases))
        self.version = version_of(frame.contents or self.source.contents, self.info)
        self._events.engine_ready(self)
        self._set_state("ready")
        self.requests.engine_ready()
