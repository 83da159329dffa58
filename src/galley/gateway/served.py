"""One served model: its engine and text side, with everything that requests need to know of it."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from galley.config import Settings
from galley.errors import EngineFailed, EngineNotReady, RequestError
from galley.formats.source import BUNDLED, resolve_model
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.observe.metrics import Metrics
from galley.service.client import EngineClient, EngineState
from galley.service.spawn import Spawner
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from galley.types import EngineStats, OnPhase, Task

if TYPE_CHECKING:
    from galley.speech.model import SpeechModel

T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """What answers requests, once it is there."""

    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    created: int
    """Unix time at which the model became ready."""


class ServedModel:
    """One model, from its settings to its last request.

    Attributes:
        settings: the model's own, and the limits.
        name: in the API.
        metrics: what is counted for it.
    """

    def __init__(self, settings: Settings, metrics: Metrics, spawner: Spawner) -> None:
        """``metrics``: the server's; ``spawner``: where the engine's processes come from."""
        self.settings = settings
        self._spawner = spawner
        self.name = settings.served_model_name or _default_name(settings.model)
        self.metrics = metrics.model(self.name, self._engine_stats)
        self._backend: Backend | None = None
        self._speech: SpeechModel | None = None

    async def start(self, on_phase: OnPhase | None = None) -> None:
        """Fetch the model if need be, load it and start its engine.

        Raises:
            ModelError: it cannot be used.
            EngineFailed: the engine did not come up.
        """

        def phase_ended(name: str, seconds: float) -> None:
            self.metrics.phase_ended(name, seconds)
            if on_phase is not None:
                on_phase(name, seconds)

        began = time.monotonic()
        model, revision = self.settings.model, self.settings.revision
        folder = await _in_daemon_thread(lambda: resolve_model(model, revision=revision))
        phase_ended("resolve", time.monotonic() - began)
        engine = EngineClient(
            self.settings,
            str(folder),
            max_queue=self.settings.max_queue,
            on_phase=phase_ended,
            begin=lambda: self._spawner.spawn(self.settings.served_model_name),
        )
        engine.launch()
        try:
            began = time.monotonic()
            tokenizer = await asyncio.to_thread(Tokenizer.load, folder)
            template = ChatTemplate.load(folder)
            phase_ended("text", time.monotonic() - began)
            await engine.ready()
        except BaseException:
            await engine.close()
            raise
        self._backend = Backend(engine, tokenizer, template, created=int(time.time()))

    async def close(self) -> None:
        """End the engine process. Idempotent."""
        if self._backend is not None:
            await self._backend.engine.close()

    def backend(self) -> Backend:
        """What answers requests.

        Raises:
            EngineNotReady: it is still loading.
            EngineFailed: it died again and again, and will not come back.
        """
        if self._backend is None:
            raise EngineNotReady(f"{self.name} is loading", retry_after=RETRY_SECONDS)
        if self.state in ("failed", "closed"):
            raise EngineFailed(f"The engine of {self.name} has failed; the server's log says why")
        return self._backend

    def check(self, task: Task | None) -> None:
        """Raise RequestError for a task that the model does not do, else as :meth:`backend`.

        Every model does the task ``None``.
        """
        self.backend()
        if task is not None and self.tasks is not None and task not in self.tasks:
            raise RequestError(
                f"The model {self.name!r} cannot {task}; it can {', '.join(self.tasks)}",
                param="model",
            )

    def speech_model(self) -> "SpeechModel":
        """What a speech model needs beside its engine; made with the first request, which takes a while.

        Raises:
            ModelError: one of its files is wrong.
        """
        from galley.speech.model import SpeechModel

        if self._speech is None:
            backend = self.backend()
            self._speech = SpeechModel(backend.engine.info, backend.tokenizer)
        return self._speech

    @property
    def tasks(self) -> tuple[Task, ...] | None:
        """What the model does; not known before it is loaded."""
        return None if self._backend is None else self._backend.engine.info.tasks

    @property
    def state(self) -> EngineState:
        """The state of the model's engine."""
        return "starting" if self._backend is None else self._backend.engine.state

    def _engine_stats(self) -> tuple[EngineStats, int]:
        if self._backend is None:
            return EngineStats(), 0
        return self._backend.engine.stats, self._backend.engine.restarts


def _default_name(model: str) -> str:
    """A folder's own name, a hub id as it is."""
    if not model:
        return BUNDLED
    return Path(model).resolve().name if Path(model).is_dir() else model


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """As ``asyncio.to_thread``, but a download that nobody wants any more does not delay the exit."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="galley-resolve").start()
    return await asyncio.wrap_future(future)
