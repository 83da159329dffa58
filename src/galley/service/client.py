"""The server's half of the two processes: submits requests and restarts the engine when it dies.

When the engine dies, a new one is started and every unfinished request (``request_book.py``) is
resubmitted with the tokens that it already has. Since noise is a function of seed and position, its text
continues as it would have without the restart.
"""

import asyncio
import dataclasses
import logging
import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from galley.errors import (
    EngineFailed,
    EngineNotReady,
    GalleyError,
    QueueFull,
    SettingsError,
)
from galley.service.admission import Admission
from galley.service.frames import (
    Abort,
    AdapterLoaded,
    Alive,
    FromEngine,
    Phase,
    Planned,
    Ready,
    Step,
    Submit,
    UnloadAdapter,
)
from galley.service.loading_adapters import LoadingAdapters
from galley.service.process import EngineProcess
from galley.service.request_book import RequestBook
from galley.service.spawn import Spawned, spawn
from galley.service.streams import LONGEST_WAIT, OutputStream
from galley.service.turns import Share
from galley.service.watchdog import Watchdog
from galley.settings.engine import EngineSettings
from galley.types import Adapter, EngineRequest, OnPhase
from galley.types.model_info import EngineState, EngineStats, ModelInfo, OnLedger

log = logging.getLogger("galley.service")

MAX_FAILED_STARTS: Final = 5
"""Consecutive failed engine starts after which the client gives up."""

FIRST_RETRY_SECONDS: Final = 0.5
"""Delay before the second attempt; it doubles with each further attempt."""

RETRY_AFTER_SHORTAGE: Final = 2.0
"""Delay in seconds before another attempt if no process could be started."""

STALL_SECONDS: Final = 10.0
STEP_TIMEOUT: Final = 600.0
"""Default limits of a :class:`Watchdog`, in seconds."""

_QUICK_SECONDS: Final = 0.002
_LONGEST_PAUSE: Final = 0.05
"""Limits of :func:`_leave_time_to_others`, in seconds."""

WATCH_SECONDS: Final = 0.25

MOST_KILLED_STARTS: Final = 2
KILLED_WHILE_LOADING: Final = (
    "the engine was killed twice while loading, most likely for lack of memory (see the kernel's log). "
    "Use a smaller --weight-dtype (int8, int4), lower --kv-cache-tokens, or give the machine or "
    "container more memory"
)


class EngineClient:
    """The client of one model's engine process. For use in one event loop.

    Create it with :meth:`start`, or construct it and then call :meth:`launch` and :meth:`ready`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        folder: str,
        *,
        max_queue: int,
        on_phase: OnPhase | None = None,
        on_ledger: OnLedger | None = None,
        begin: Callable[[], Spawned] | None = None,
        watchdog: Callable[[], Watchdog] = lambda: Watchdog(STALL_SECONDS, STEP_TIMEOUT),
        on_step: Callable[[EngineStats], None] | None = None,
        promised: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create it; :meth:`launch` starts the engine.

        Args:
            settings: the engine's settings; a server's other settings are not passed on to the engine.
            folder: the checkpoint's folder.
            max_queue: sequences that may wait in addition to the running ones.
            on_phase: called at the end of each start-up phase.
            on_ledger: called with the memory plan of each engine that starts.
            begin: spawns an engine process.
            watchdog: creates the watchdog of an engine process.
            on_step: called with the engine's statistics after each step.
            promised: returns the bytes of memory that other engines have yet to allocate.
        """
        names = [f.name for f in dataclasses.fields(EngineSettings)]
        # Only these fields: the server's settings contain API keys, which the engine must not receive.
        self._settings = EngineSettings(**{name: getattr(settings, name) for name in names})
        self._folder = folder
        self._book = RequestBook(Admission(settings.running_limit, max_queue), self._tell)
        self._on_phase = on_phase
        self._on_ledger = on_ledger
        self._on_step = on_step
        self._promised = promised
        self._begin = begin or (lambda: spawn(settings.engine_name))
        self._adapters = LoadingAdapters()
        self._new_watchdog = watchdog
        self._watchdog = watchdog()
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._info: ModelInfo | None = None
        self._error: GalleyError | None = None
        self._phases: dict[str, float] = {}
        self.state: EngineState = "starting"
        self.stats = EngineStats()
        self.restarts = 0
        self._killed_starts = 0
        self._hung = False
        self._planned = False

    @classmethod
    async def start(
        cls,
        settings: EngineSettings,
        folder: str,
        *,
        max_queue: int,
        on_phase: OnPhase | None = None,
    ) -> "EngineClient":
        """Start the engine process for the checkpoint in ``folder`` and wait until it is ready.

        Raises:
            ModelError, SettingsError: the model or the settings cannot be used.
            EngineFailed: the engine could not start.
        """
        client = cls(settings, folder, max_queue=max_queue, on_phase=on_phase)
        client.launch()
        try:
            await client.ready()
        except BaseException:
            await client.close()
            raise
        return client

    def launch(self) -> None:
        """Start the engine without waiting for it."""
        self._task = asyncio.create_task(self._supervise(), name="galley-supervisor")

    async def planned(self) -> None:
        """Wait until the engine has reported its memory plan, or its start has ended."""
        while self.state == "starting" and not self._planned:
            self._changed.clear()
            await self._changed.wait()

    async def ready(self) -> ModelInfo:
        """Wait until the engine is ready. Raises the errors of :meth:`start`."""
        while self.state in ("starting", "recovering"):
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if self.state == "closed":
            raise EngineFailed("the engine was closed")
        return self.info

    @property
    def info(self) -> ModelInfo:
        """The description of the loaded model. Raises EngineNotReady until an engine has been ready."""
        if self._info is None:
            raise EngineNotReady("the engine is starting", retry_after=1.0)
        return self._info

    @property
    def engine_pid(self) -> int | None:
        """The engine's process id, or None if no engine is running."""
        return self._process.pid if self._process else None

    @property
    def in_flight(self) -> int:
        """The number of unfinished sequences."""
        return len(self._book)

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
        """Start all of the requests or none. They come from :func:`galley.service.requests.expand`.

        While the engine is being restarted, requests are accepted and wait.

        Args:
            requests: the requests of one caller.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded, and the engine drops their requests.

        Raises:
            QueueFull: too many sequences are waiting, or the answers are expected after the deadline; the
                error states when to retry.
            DeadlineExceeded: the deadline has passed.
            EngineNotReady: the engine has not been ready yet, or is closed.
            EngineFailed: the engine has given up.
        """
        self._check_state()
        return self._book.take(requests, deadline)

    async def submit_patiently(
        self, requests: Sequence[EngineRequest], deadline: float = math.inf
    ) -> list[OutputStream]:
        """Submit like :meth:`submit_all`, but wait while the queue is full; for work already begun."""
        while True:
            try:
                return self.submit_all(requests, deadline)
            except QueueFull as full:
                await asyncio.sleep(min(LONGEST_WAIT, full.retry_after))

    async def load_adapter(self, adapter: Adapter) -> None:
        """Have the engine read and check a LoRA adapter; requests may then name it.

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
        if self._process is None:
            raise EngineNotReady("the engine is being restarted", retry_after=1.0)
        await self._adapters.load(adapter, self._process.send)

    def unload_adapter(self, adapter: Adapter) -> None:
        """Have the engine free an adapter; requests that already use it run to completion."""
        if self._process is not None and self.state in ("ready", "stalled"):
            self._process.send(UnloadAdapter(adapter))

    async def close(self) -> None:
        """Stop the engine; unfinished streams end with ``finish_reason`` "abort"."""
        self._set_state("closed")
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._hang_up()
        self._book.end_all("abort", None)

    def _check_state(self) -> None:
        if self.state == "failed":
            raise EngineFailed(f"the engine is down: {self._error}")
        if self.state in ("starting", "closed"):
            raise EngineNotReady(f"the engine is {self.state}", retry_after=1.0)

    def _tell(self, frame: Submit | Abort) -> int:
        """Send a frame; return the frames sent so far, this one included, or 0 without a process."""
        if self._process is None:
            return 0
        self._process.send(frame)
        return self._process.frames_sent

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._note_stats()
        self._changed.set()

    def _note_stats(self) -> None:
        self._book.observe(self.stats, working=self.state == "ready")

    async def _supervise(self) -> None:
        """Start engines until one cannot start, or until the client is closed."""
        try:
            failed_starts = 0
            while failed_starts < MAX_FAILED_STARTS:
                if failed_starts:
                    await asyncio.sleep(FIRST_RETRY_SECONDS * 2 ** (failed_starts - 1))
                try:
                    was_ready = await self._one_engine()
                except OSError as error:
                    # Out of descriptors, processes or memory: this can pass, and is not the model's fault.
                    log.error("cannot start an engine process (%s); trying again", error)
                    await asyncio.sleep(RETRY_AFTER_SHORTAGE)
                    continue
                self.restarts += 1
                failed_starts = 0 if was_ready else failed_starts + 1
            self._fail(EngineFailed(f"the engine failed to start {failed_starts} times in a row"))
        except Exception as error:
            if not isinstance(error, GalleyError):
                log.exception("the supervisor failed")
            self._fail(error)

    async def _one_engine(self) -> bool:
        """Run one engine process from start to end; return whether it ever became ready.

        Raises:
            GalleyError: it cannot start, and no engine has started before: trying again will not help.
            OSError: the process could not be created, because a resource has run out.
        """
        reason: object = None
        try:
            self._process = await EngineProcess.start(
                self._begin(), self._settings, self._folder, self._promised()
            )
        except OSError:
            if self._info is None:
                raise EngineFailed(
                    "cannot start the engine process; see the server's log"
                ) from None
            raise
        watching = asyncio.create_task(self._watch(self._process))
        try:
            async for frames in self._process.frames():
                for frame in frames:
                    self._handle(frame)
                await _leave_time_to_others()
        except GalleyError as error:
            if self._info is None:
                await self._hang_up()
                raise
            reason = error
        finally:
            watching.cancel()
        was_ready = self.state in ("ready", "stalled")
        # Before the first await: nothing may be sent to this engine from here on.
        process, self._process = self._process, None
        self._book.quarantine.engine_away()
        self._adapters.lost()
        if was_ready:
            self._set_state("recovering")
        status = await process.close() if process else None
        # A hanging engine is at fault itself; any other SIGKILL mostly comes from outside.
        killed = status == -signal.SIGKILL and not self._hung
        self._hung = False
        if was_ready:
            self._book.engine_died(killed=killed)
        elif killed:
            self._killed_starts += 1
            if self._info is None and self._killed_starts == MOST_KILLED_STARTS:
                raise EngineFailed(KILLED_WHILE_LOADING)
        log.error("the engine process ended (%s); starting a new one", reason or f"status {status}")
        return was_ready

    async def _watch(self, process: EngineProcess) -> None:
        """Check that the engine makes progress; kill it if it hangs."""
        watchdog = self._watchdog = self._new_watchdog()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self.state not in ("ready", "stalled"):
                continue
            verdict = watchdog.verdict(time.monotonic(), working=self._book.quarantine.working)
            if verdict == "hung":
                log.error("the engine exceeded --step-timeout in a step; killing it")
                self._hung = True
                process.kill()
                return
            if verdict == "stalled" and self.state == "ready":
                log.warning(
                    "the engine has work but does not respond; its process may be stopped or starved of CPU"
                )
                self._set_state("stalled")

    async def _hang_up(self) -> None:
        process, self._process = self._process, None
        if process:
            await process.close()

    def _fail(self, error: Exception) -> None:
        self._error = error if isinstance(error, GalleyError) else EngineFailed(str(error))
        self._book.end_all("error", f"the engine is down: {error}")
        self._set_state("failed")

    def _handle(self, frame: FromEngine) -> None:
        seconds = frame.step_seconds if isinstance(frame, Alive) else 0.0
        self._watchdog.report(time.monotonic(), seconds)
        if self.state == "stalled":
            self._set_state("ready")
        if isinstance(frame, Step):
            for output in frame.outputs:
                self._book.deliver(output)
            self.stats = frame.stats
            self._note_stats()
            if self._on_step is not None:
                self._on_step(frame.stats)
            self._book.stepped(frame.frames_seen)
        elif isinstance(frame, Phase):
            self._phase_ended(frame.name, frame.seconds)
        elif isinstance(frame, Planned):
            if self._on_ledger:
                self._on_ledger(frame.ledger)
            self._planned = True
            self._changed.set()
        elif isinstance(frame, AdapterLoaded):
            self._adapters.loaded(frame)
        elif isinstance(frame, Ready):
            self.stats = frame.stats
            self._become_ready(frame.info)

    def _phase_ended(self, name: str, seconds: float) -> None:
        self._phases[name] = seconds
        if self._on_phase:
            self._on_phase(name, seconds)

    def _become_ready(self, info: ModelInfo) -> None:
        self._phase_ended("ready", sum(s for name, s in self._phases.items() if name != "ready"))
        self._info = msgspec.structs.replace(info, phases=dict(self._phases))
        # Any later engine must offer the same capacity as this one.
        if (text := info.text) is not None:
            if tokens := text.kv_cache_tokens:
                settings = dataclasses.replace(self._settings, kv_cache_tokens=tokens)
            else:
                settings = dataclasses.replace(self._settings, max_model_len=text.max_model_len)
            self._settings = settings
        self._set_state("ready")
        self._book.engine_ready()


async def _leave_time_to_others() -> None:
    """Let the readers take the new output; if that takes long, give new requests as much time again.

    More output arrives in the meantime, and each reader then takes all of it at once, for little more than
    the cost of one token. So when the server is short of CPU time, texts are streamed in larger pieces and
    new requests are still answered promptly.
    """
    began = time.monotonic()
    await asyncio.sleep(0)  # tasks that wait for tokens become ready
    await asyncio.sleep(0)  # and run
    took = time.monotonic() - began
    if took > _QUICK_SECONDS:
        await asyncio.sleep(min(took, _LONGEST_PAUSE))
