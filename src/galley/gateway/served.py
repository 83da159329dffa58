"""One served model: its engine, its text workers, and all data about it that requests need."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from galley.cache.response_cache import ResponseCache
from galley.errors import Conflict, EngineFailed, EngineNotReady, RequestError, UnknownModel
from galley.formats.model_repository import is_in_repository, version_of
from galley.gateway.adapters import ServedAdapters
from galley.gateway.backend import Backend, BackendLoading
from galley.gateway.caller import Caller
from galley.gateway.default_name import default_name
from galley.gateway.kept import Kept
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.gateway.make_submitter import MakeSubmitter, make_submitter
from galley.gateway.memory_plans import MemoryPlans
from galley.gateway.memory_watch import MemoryWatch
from galley.gateway.model_files import fingerprint, located
from galley.gateway.retired import RetiredBackends, until_unused
from galley.observe.metrics import Metrics
from galley.service.releases import merged
from galley.service.spawn import Spawner
from galley.settings.config import Settings
from galley.traffic.recorder import Recorder
from galley.types import Adapter, OnPhase, Task
from galley.types.engine_stats import EngineState, EngineStats, ReleaseStatus, ReplicaStatus
from galley.types.model_info import Ledger, ModelInfo, OnLedger

log = logging.getLogger("galley.server")


class ServedModel:
    """One model, from its settings to its last request.

    Attributes:
        settings: the model's settings, and the limits.
        name: its name in the API.
        metrics: its metrics.
        adapters: LoRA adapters that requests may name.
        memory: refuses new requests when memory is nearly used up.
        on_request: whether it is loaded on request, and unloaded when unused.
        tasks: its tasks; None before it is loaded for the first time.
        kept: how long it stays loaded after its last request, if it is loaded on request.
        ledger: its memory plan, once known.
        withdrawn: why it answers no requests although the server runs; None: it does.
        recorder: writes the record of its traffic; None: there is none.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        spawner: Spawner,
        plans: MemoryPlans | None = None,
        make: MakeSubmitter = make_submitter,
        cache: ResponseCache | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Describe a model that is not loaded yet.

        Args:
            settings: the model's settings, and the limits.
            metrics: the server's metrics.
            spawner: the spawner of the engine's processes.
            plans: the memory plans of all models that share the memory.
            make: creates the submitter of its requests.
            cache: the server's response cache.
            recorder: writes the record of its traffic.
        """
        self.settings = settings
        self._spawner = spawner
        self._plans = plans or MemoryPlans()
        self._make = make
        self._cache = cache
        self.recorder = recorder
        self.memory = MemoryWatch(settings.memory_limit_fraction)
        self.name = settings.served_model_name or default_name(settings.model)
        self.metrics = metrics.model(self.name, self)
        self.adapters = ServedAdapters(settings.adapter_paths)
        self.on_request = settings.load_on_request
        self.kept = Kept(settings.model_keep_alive)
        self.tasks: tuple[Task, ...] | None = None
        self.ledger: Ledger | None = None
        self.withdrawn: str | None = None
        self._backend: Backend | None = None
        self._loading = asyncio.Lock()
        self._retired = RetiredBackends()
        self._earlier_restarts = self._earlier_killed_starts = 0

    async def start(
        self, on_phase: OnPhase | None = None, on_ledger: OnLedger | None = None
    ) -> None:
        """Fetch the model if needed, load it and start its engine.

        Raises:
            ModelError: the model cannot be used.
            EngineFailed: the engine did not start.
            SettingsError: it is a speech model, and the packages for speech are not installed.
        """
        async with self._loading:
            await self._start(on_phase, on_ledger)

    async def _start(
        self, on_phase: OnPhase | None = None, on_ledger: OnLedger | None = None
    ) -> None:
        try:
            self._backend = await self._load(on_phase, on_ledger)
        except BaseException:
            self._plans.forget(self.name)
            self._spawner.release(self.settings.served_model_name)
            raise

    async def unload(self) -> None:
        """End the processes of a model without requests and free its memory, until it is started again."""
        if (backend := self._backend) is None:
            return
        self._backend = None
        self.kept.keep_for(None)  # a request's keep-alive ends with this load
        self._count_earlier(backend)
        await backend.close()
        self._plans.forget(self.name)
        self._spawner.release(self.settings.served_model_name)

    async def withdraw(self) -> None:
        """Refuse new requests, let the running ones end, and unload the model, until :meth:`restore`.

        Raises:
            Conflict: the model is being loaded.
        """
        self._check_not_loading()
        async with self._loading:
            self.withdrawn = "unloaded"
            if self._backend is not None:
                await until_unused(self._backend)
            await self.unload()

    async def restore(self, settings: Mapping[str, Any]) -> None:
        """Answer requests again, with settings that may have changed.

        A model that is loaded on request is loaded with the next one.

        Raises:
            Conflict: the model is being loaded or unloaded.
            ModelError, SettingsError, EngineFailed: as in :meth:`start`; nothing changes.
        """
        self._check_not_loading()
        async with self._loading:
            before = self.settings
            self.settings = replace(before, **settings)
            try:
                if not self.on_request and not self.is_loaded:
                    await self._start()
            except BaseException:
                self.settings = before
                raise
            self.withdrawn = None

    def _check_not_loading(self) -> None:
        if self._loading.locked():
            raise Conflict(f"{self.name} is being loaded or unloaded; wait until that is done")

    def _check_served(self) -> None:
        if self.withdrawn is not None:
            raise UnknownModel(
                f"The model {self.name!r} is not loaded: {self.withdrawn}. "
                f"POST /v2/repository/models/{self.base_name}/load loads it"
            )

    @property
    def expires_at(self) -> int | None:
        """Unix time at which the model will be unloaded if it stays unused; None: never."""
        return self.kept.expires_at(busy=self.busy) if self.on_request else None

    @property
    def is_loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._backend is not None

    @property
    def stores(self) -> bool:
        """Whether an engine of the model is still writing files for its next start."""
        replicas = () if self._backend is None else self._backend.engine.replicas
        return any(replica.stores and replica.state == "ready" for replica in replicas)

    @property
    def busy(self) -> bool:
        """Whether the model has requests or is being reloaded; False if it is not loaded."""
        backend = self._backend
        return backend is not None and (
            backend.busy or self._loading.locked() or bool(self._retired)
        )

    async def reload(
        self, *, only_if_changed: bool = False, settings: Mapping[str, Any] | None = None
    ) -> bool:
        """Load the model's files into a new engine while the old one serves, and switch to the new one.

        Requests that have begun stay with the old engine, which ends with the last of them; until then
        both are in memory. If the new files cannot be used, nothing changes.

        Args:
            only_if_changed: do nothing if the files are those that are being served.
            settings: engine settings that have changed; if there are any, a new engine starts with them.

        Returns:
            Whether the model was reloaded.

        Raises:
            Conflict: the model is being loaded or unloaded.
            EngineNotReady, EngineFailed: as in :meth:`backend`.
            ModelError: the files cannot be used.
        """
        if self.on_request and not self.is_loaded:
            self.settings = replace(self.settings, **(settings or {}))
            return False  # the next request loads the files as they are then
        old = self.backend()
        self._check_not_loading()
        async with self._loading:
            before = self.settings
            self.settings = replace(before, **(settings or {}))
            same = only_if_changed and self.settings == before
            if same and old.files == fingerprint(await located(self.settings)):
                return False
            changed = "".join(f", {name}={value}" for name, value in (settings or {}).items())
            log.info("%s: loading it again%s", self.name, changed)
            try:
                self._backend = await self._load()
            except BaseException:
                self.settings = before
                raise
            self._count_earlier(old)
            self._retired.add(old)
        log.info("%s is served from the new files", self.name)
        return True

    async def _load(
        self, on_phase: OnPhase | None = None, on_ledger: OnLedger | None = None
    ) -> Backend:
        def phase_ended(name: str, seconds: float) -> None:
            self.metrics.phase_ended(name, seconds)
            if on_phase is not None:
                on_phase(name, seconds)

        def planned(ledger: Ledger) -> None:
            self.ledger = ledger
            self.metrics.planned(ledger)
            if on_ledger is not None:
                on_ledger(ledger)

        began = time.monotonic()
        folder = await located(self.settings)
        phase_ended("resolve", time.monotonic() - began)
        loading = BackendLoading(
            settings=self.settings,
            name=self.name,
            folder=folder,
            adapters=self.adapters,
            spawner=self._spawner,
            plans=self._plans,
            make=self._make,
            cache=self._cache,
            cache_counts=self.metrics.responses,
            on_phase=phase_ended,
            on_ledger=planned,
            on_step=self._step_ended,
            on_finished=self.metrics.release_finished,
        )
        backend = await loading.load()
        self.tasks = backend.engine.info.tasks
        return backend

    async def close(self) -> None:
        """End the model's processes, including those of earlier files. Idempotent."""
        await self._retired.close()
        if self._backend is not None:
            await self._backend.close()

    @property
    def version(self) -> str:
        """The version that the model repository has it as; "1" outside of one."""
        return version_of(self.settings.model_repository, self.settings.model)

    @property
    def base_name(self) -> str:
        """The name that all versions of the model share."""
        return self.name.removesuffix(f":{self.version}")

    @property
    def in_repository(self) -> bool:
        """Whether it is a model of the repository."""
        return is_in_repository(self.settings.model_repository, self.settings.model)

    def name_with(self, adapter: Adapter | None) -> str:
        """Return the model's name in the API, or that of one of its adapters."""
        return self.name if adapter is None else f"{self.name}:{adapter.name}"

    def backend(self) -> Backend:
        """Return the backend that answers requests.

        Raises:
            UnknownModel: the model has been unloaded.
            EngineNotReady: the model is still loading.
            EngineFailed: the engine died repeatedly and is not restarted.
        """
        self._check_served()
        if self._backend is None:
            raise EngineNotReady(f"{self.name} is loading", retry_after=RETRY_SECONDS)
        if self.state in ("failed", "closed"):
            raise EngineFailed(f"The engine of {self.name} has failed; the server's log says why")
        return self._backend

    def check(
        self,
        task: Task | None,
        caller: Caller | None = None,
        *,
        called: str | None = None,
        priority: int | None = None,
    ) -> None:
        """Raise RequestError if the model does not support the task, or else the errors of :meth:`backend`.

        Every model supports the task ``None``. A model that has yet to be loaded on request passes. With
        a ``caller``, whose request is for the engine's queue, also raise QueueFull, DeadlineExceeded or
        MemoryPressure if that is certain before any work is done: from the queue's places and, given the
        request's ``priority``, also from its pace. What the response cache may answer needs no place.
        ``called`` is the model's name in the request.
        """
        if task is not None and self.tasks is not None and task not in self.tasks:
            raise RequestError(
                f"The model {called or self.name!r} cannot {task}; it can {', '.join(self.tasks)}",
                param="model",
            )
        self._check_served()
        if self.on_request and not self.is_loaded:
            return
        backend = self.backend()
        if caller is not None:
            self.memory.check()
            if backend.may_have_stored(caller):
                return
            if priority is None:
                backend.engine.check_place(caller.scheduled_by, caller.share)
            else:
                wanted = caller.priority(priority)
                backend.engine.check_early(caller.scheduled_by, caller.share, wanted)

    @property
    def state(self) -> EngineState:
        """The state of the model's engine."""
        return "starting" if self._backend is None else self._backend.engine.state

    def _step_ended(self, replica: ReplicaStatus) -> None:
        # An engine that serves the last requests of replaced files no longer counts.
        if any(replica.stats is current.stats for current in self.replicas):
            self.metrics.step_ended(replica)

    # Read by the metrics at each scrape, see :class:`galley.observe.engines.ServedEngine`.

    @property
    def stats(self) -> EngineStats:
        """The sums of the engines' latest statistics."""
        return EngineStats() if self._backend is None else self._backend.engine.stats

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The status of each engine that serves the model; empty if it is not loaded."""
        return () if self._backend is None else self._backend.engine.replicas

    @property
    def releases(self) -> Sequence[ReleaseStatus]:
        """The pending work of each release of the model; empty without releases."""
        backends = [*self._retired, *([] if self._backend is None else [self._backend])]
        return merged([backend.engine.releases for backend in backends])

    @property
    def restarts(self) -> int:
        """How often the engine's process was replaced."""
        now = 0 if self._backend is None else self._backend.engine.restarts
        return self._earlier_restarts + now

    @property
    def killed_starts(self) -> int:
        """How often the engine's process was killed while it loaded."""
        now = 0 if self._backend is None else self._backend.engine.killed_starts
        return self._earlier_killed_starts + now

    def _count_earlier(self, backend: Backend) -> None:
        """Keep the counts of a backend that is replaced or unloaded, so that counters never fall."""
        self._earlier_restarts += backend.engine.restarts
        self._earlier_killed_starts += backend.engine.killed_starts

    @property
    def info(self) -> ModelInfo | None:
        """The description of the loaded model; None before it is loaded."""
        return None if self._backend is None else self._backend.engine.info

    @property
    def is_ready(self) -> bool | None:
        """Whether the engine accepts requests now; None if the model has yet to be loaded on request."""
        if self.withdrawn is not None:
            return False
        if self.on_request and not self.is_loaded:
            return None
        return self.state == "ready"

    @property
    def token_budget(self) -> int:
        """The maximum number of tokens of a step."""
        return self.settings.max_batch_tokens

    @property
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Kind of process -> process ids of those that run."""
        return {} if self._backend is None else self._backend.processes
