"""The models of one server, by name, and what they share: settings, lifecycle and metrics."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from galley.cache.response_cache import ResponseCache
from galley.errors import (
    Conflict,
    EngineFailed,
    EngineNotReady,
    GalleyError,
    ModelError,
    SettingsError,
    UnknownModel,
)
from galley.gateway.adapters import ServedAdapter
from galley.gateway.caller import Caller
from galley.gateway.comparing import semantic_cache
from galley.gateway.lifecycle import Lifecycle
from galley.gateway.make_submitter import MakeSubmitter, make_submitter
from galley.gateway.memory_plans import MemoryPlans
from galley.gateway.model_names import ModelNames
from galley.gateway.on_request import OnRequest
from galley.gateway.served import ServedModel
from galley.observe.metrics import Metrics
from galley.service.spawn import Spawner
from galley.settings.cache import check_mode
from galley.settings.config import Settings
from galley.settings.named_models import NamedModel
from galley.traffic.recorder import Recorder
from galley.traffic.texts import TextCipher
from galley.types import Task
from galley.types.engine_stats import EngineState
from galley.types.model_info import Ledger

OnModelPhase = Callable[[str, str, float], None]
"""Called with (model, phase, seconds) when a phase of a model's start has ended."""

OnModelLedger = Callable[[str, Ledger], None]
"""Called with a model's name and its memory plan, before its weights are loaded."""

_STORED_SECONDS: Final = 0.05
"""Interval at which :meth:`Registry.stored` looks."""

_WORST_FIRST: Final[tuple[EngineState, ...]] = (
    "failed",
    "closed",
    "starting",
    "recovering",
    "stalled",
    "ready",
)


class Registry(ModelNames):
    """All models of one server, from their settings to their last request.

    Attributes:
        settings: limits and addresses, which apply to all models.
        responses: the response cache; None: no model uses it.
        recorder: writes the record of the traffic; None: there is none.
    """

    def __init__(
        self,
        settings: Settings,
        spawner: Spawner | None = None,
        make: MakeSubmitter = make_submitter,
    ) -> None:
        """Describe the models; :meth:`start` starts them.

        Args:
            settings: the settings of all models.
            spawner: the spawner of engine processes, if some have been started already.
            make: creates the submitter of a model's requests.

        Raises:
            SettingsError: the store of the response cache, or the folder of the record, cannot be used.
        """
        self._spawner = spawner or Spawner(settings)
        self._make = make
        self.settings = settings
        self.metrics = Metrics(settings.price_per_hour, vllm_names=settings.metrics_vllm_names)
        self.lifecycle = Lifecycle(self._state)
        self._plans = MemoryPlans()
        each = settings.each_model()
        self._cache_modes = settings.cache_modes
        self.responses = ResponseCache.open(settings) if "exact" in self._cache_modes else None
        self.recorder = None
        if settings.record:
            key = settings.record_texts
            cipher = TextCipher(Path(key), "record_texts") if key else None
            self.recorder = Recorder(Path(settings.record), settings.record_bytes, cipher)
        if self.responses is not None:
            self.metrics.watch_responses(self.responses)
            self.responses.semantic = semantic_cache(settings, self.responses, self)
        models = [self._described(own) for own in each]
        super().__init__(models)
        if self.responses is not None:
            self._check_comparers()
        self._on_request = OnRequest(
            [model for model in models if model.on_request],
            most=settings.max_loaded_models,
            timeout=settings.request_timeout,
        )

    def _check_comparers(self) -> None:
        """Raise SettingsError if a model by which the response cache compares questions is not served."""
        own = self.settings
        names = {"semantic_cache_reranker": own.semantic_cache_reranker}
        if not own.semantic_cache_url:
            names["semantic_cache_model"] = own.semantic_cache_model
        for setting, name in names.items():
            if name and name not in self._models:
                raise SettingsError(
                    f"{setting} is {name!r}, which is not a model of this server; it has {self._listed()}"
                )

    def _described(self, settings: Settings) -> ServedModel:
        return ServedModel(
            settings,
            self.metrics,
            self._spawner,
            self._plans,
            self._make,
            self.responses,
            self.recorder,
        )

    def add(self, model: NamedModel) -> ServedModel:
        """Add a model, which answers requests once it is restored (:meth:`ServedModel.restore`).

        Raises:
            Conflict: the name is that of a model, an adapter or a derived model.
            SettingsError: its settings cannot be used.
        """
        if self.knows(model.name) or any(model.name in other.adapters for other in self):
            raise Conflict(f"{model.name!r} is the name of a served model or adapter")
        own = self.settings.of(model)
        check_mode(own.response_cache, self._cache_modes, f"response_cache of {model.name}")
        served = self._described(own)
        served.on_request = False
        served.withdrawn = "not loaded yet"
        self._models[served.name] = served
        return served

    async def start(
        self,
        on_phase: OnModelPhase | None = None,
        on_ledger: OnModelLedger | None = None,
    ) -> None:
        """Start all models at the same time; none is left running when one cannot start.

        Models that are loaded on request are not started.

        Raises:
            ModelError: a model cannot be used; the error names it, if there are several.
            SettingsError, EngineFailed: as in :meth:`ServedModel.start`, if there is only one model.
        """
        if self.responses is not None and self.responses.semantic is not None:
            self.responses.semantic.start()
        try:
            async with asyncio.TaskGroup() as group:
                for model in self._at_start:
                    group.create_task(self._start(model, on_phase, on_ledger))
        except ExceptionGroup as errors:
            await self.close()
            raise errors.exceptions[0] from None

    async def _start(
        self,
        model: ServedModel,
        on_phase: OnModelPhase | None,
        on_ledger: OnModelLedger | None,
    ) -> None:
        def phase_ended(name: str, seconds: float) -> None:
            if on_phase is not None:
                on_phase(model.name, name, seconds)

        def planned(ledger: Ledger) -> None:
            if on_ledger is not None:
                on_ledger(model.name, ledger)

        try:
            await model.start(phase_ended, planned)
        except GalleyError as error:
            if len(self._models) == 1:
                raise
            raise ModelError(f"{model.name}: {error}") from error

    async def reload(
        self,
        name: str | None = None,
        *,
        only_if_changed: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Reload the models' files while they are served, one model after another.

        Args:
            name: the model's name; None: all models.
            only_if_changed: skip models whose files are those that are being served.
            settings: engine settings that have changed.

        Returns:
            The names of the reloaded models.

        Raises:
            UnknownModel: no model has the name.
            Conflict, EngineNotReady, EngineFailed, ModelError: as in :meth:`ServedModel.reload`; models
                that were already reloaded stay reloaded.
        """
        models = list(self) if name is None else [self.named(name)]
        return [
            model.name
            for model in models
            if await model.reload(only_if_changed=only_if_changed, settings=settings or {})
        ]

    @property
    def stores(self) -> bool:
        """Whether an engine is still writing files for its next start, such as packed weights."""
        return any(model.stores for model in self)

    async def stored(self) -> None:
        """Wait until the engines have written the files for their next start."""
        while self.stores:  # noqa: ASYNC110 (an engine sets no event)
            await asyncio.sleep(_STORED_SECONDS)

    async def close(self) -> None:
        """End the engine processes. Idempotent."""
        await self._on_request.close()
        await asyncio.gather(*(model.close() for model in self))
        if self.responses is not None:
            await self.responses.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    def find(
        self,
        name: str | None,
        task: Task | None = None,
        caller: Caller | None = None,
        *,
        priority: int = 0,
    ) -> Coroutine[Any, Any, ServedModel]:
        """Find the model for a request, check that it supports the task, and load it if needed.

        Refusals are raised at once, before anything is awaited: on a server whose event loop has many
        streams to write, each iteration of the loop is a wait.

        Create the request's Call before awaiting anything else: a model without calls may be unloaded
        again after a second.

        Args:
            name: the request's name of a model or of an adapter. None means the only model, or the only
                one that supports the task.
            task: the task that the request needs; None: any.
            caller: the caller of a request for the engine's queue; its adapter is set here.
            priority: the request's priority; a lower value is scheduled sooner.

        Raises:
            UnknownModel: no model has the name.
            RequestError: the model does not support the task, or the name is ambiguous.
            EngineNotReady, EngineFailed: as in :meth:`ServedModel.backend`.
            QueueFull, DeadlineExceeded: no request of the caller can be answered in time.
            MemoryPressure: the model is not loaded, and others with requests leave no room for it.
        """
        model, adapter = self._checked(name, task, caller, priority=priority)

        async def found() -> ServedModel:
            if model.on_request:
                await self._load(model, caller)
                model.check(task, caller, called=name, priority=priority)
            if adapter is not None and caller is not None:
                caller.adapter = model.adapters.named(adapter)
            return model

        return found()

    async def _load(self, model: ServedModel, caller: Caller | None) -> None:
        deadline = math.inf if caller is None else caller.deadline
        limit = time.monotonic() + self.settings.request_timeout
        await self._on_request.ensure(model, min(deadline, limit))

    def unload_soon(self, name: str, task: Task, caller: Caller) -> ServedModel:
        """Return the model of that name, and unload it once unused if it is loaded on request.

        The model is not loaded for this. Raises the errors of :meth:`find`, except those of loading.
        """
        model, _ = self._checked(name, task, caller)
        if model.is_loaded or self.is_loading(model):
            model.kept.keep_for(0)
        return model

    def _checked(
        self, name: str | None, task: Task | None, caller: Caller | None, *, priority: int = 0
    ) -> tuple[ServedModel, str | None]:
        """Return the request's model and adapter, with the checks that are possible before it is loaded."""
        if name is not None and (derived := self.derived.get(name)) is not None:
            name = derived.base
            if caller is not None:
                caller.derived = derived
        model, adapter = (self._only(task), None) if name is None else self._resolved(name)
        if caller is not None:
            caller.record["model"] = model.name if adapter is None else f"{model.name}:{adapter}"
        model.check(task, caller, called=name, priority=priority)
        return model, adapter

    async def load_adapter(self, model: ServedModel, name: str, path: str) -> ServedAdapter:
        """Load one more LoRA adapter of a loaded model.

        Raises:
            Conflict: the name is that of a model, or of another of the model's adapters.
            ModelError, SettingsError: the adapter cannot be used, or the model takes no adapters.
            EngineNotReady, EngineFailed: as in :meth:`ServedModel.backend`.
        """
        if self.knows(name):
            raise Conflict(f"{name!r} is the name of a model; choose another one for the adapter")
        return await model.adapters.load(model.backend().engine, name, path)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter and remove its further names. Raises the errors of :meth:`find`."""
        model, adapter = self._resolved(name)
        if adapter is None:
            raise UnknownModel(f"{name!r} is a model, not an adapter")
        engine = model.backend().engine if model.is_loaded else None
        await model.adapters.unload(engine, adapter)
        gone = (adapter, f"{model.name}:{adapter}")
        self.derived = {n: one for n, one in self.derived.items() if one.base not in gone}

    def is_loading(self, model: ServedModel) -> bool:
        """Return whether a model is being loaded, at the start or for a request."""
        return self._on_request.is_loading(model) if model.on_request else not model.is_loaded

    def expect(self, task: Task | None = None, caller: Caller | None = None) -> None:
        """Raise if no model can answer a request, whichever it names; call this before reading its body.

        Checks that depend on the requested name are left to :meth:`find`: that a model does not exist or
        does not support the task and, of several models, that one is not ready.

        Raises:
            Unavailable, DeadlineExceeded: :meth:`find` would raise for each model that supports the task.
            EngineNotReady, EngineFailed: the only model cannot answer.
            RateLimited: the caller's tenant has reached its limit of requests.
        """
        if caller is not None:
            with caller.limited(self.metrics.tenants):
                caller.account.check()
        # Keep no exception in a local variable: its traceback would keep this frame, its callers and
        # all their objects alive until the garbage collector runs.
        served = [m for m in self if m.withdrawn is None]
        fitting = [m for m in served if task is None or m.tasks is None or task in m.tasks]
        if not fitting:
            return
        if len(fitting) > 1:
            fitting.sort(key=lambda model: _WORST_FIRST.index(model.state))
        *others, best = fitting
        for model in others:
            with suppress(GalleyError):
                model.check(task, caller)
                return
        named = (EngineNotReady, EngineFailed) if len(self._models) > 1 else ()
        with suppress(*named):
            best.check(task, caller)

    def _state(self) -> EngineState:
        """Return the worst state of the models loaded at the start.

        Failures of the other models are reported by their requests.
        """
        states = {model.state for model in self._at_start}
        return next((state for state in _WORST_FIRST if state in states), "ready")


@asynccontextmanager
async def open_models(
    settings: Settings, on_phase: OnModelPhase | None = None
) -> AsyncIterator[Registry]:
    """Start the models without an HTTP server; their engines end with the block."""
    models = Registry(settings)
    await models.start(on_phase)
    try:
        yield models
    finally:
        await models.close()
