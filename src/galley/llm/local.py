"""The engine in the caller's process; several threads may use it, and share its batch."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from galley.errors import EngineError
from galley.formats.source import resolve_model
from galley.service.protocol import Engine, find_loader
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Output
from galley.types.model_info import ModelInfo


class Closable(ABC):
    """A context manager that is closed at the end of its ``with``."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LocalEngine(Closable):
    """A loaded model. Use it as a context manager, or :meth:`close` it; nothing is left running.

    Attributes:
        folder: folder of the model's checkpoint.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Load the model. Raises what :func:`find_loader` and the engine's loader raise."""
        self.folder: Path = resolve_model(settings.model, revision=settings.revision)
        # Held for at most one engine step, never while a caller handles its outputs.
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Output]] = {}
        load = find_loader(settings.engine_name)
        self._loaded: Engine | None = load(settings, self.folder)

    @property
    def engine(self) -> Engine:
        """The loaded engine. Raises EngineError if it was closed."""
        if self._loaded is None:
            raise EngineError("the model is closed")
        return self._loaded

    @property
    def info(self) -> ModelInfo:
        """Sizes, defaults and start-up times of the model."""
        return self.engine.info

    def describe(self) -> str:
        """Describe the loaded model and how it runs, for reprs."""
        if self._loaded is None:
            return "closed"
        info = self._loaded.info
        parts = [repr(info.name), info.family]
        if info.program is not None:
            parts += [f"{info.program.weight_dtype} weights", f"{info.program.kv_dtype} KV cache"]
        parts.append(f"executor {info.executor!r}")
        if info.text is not None:
            parts.append(f"context of {info.text.max_model_len} tokens")
        return ", ".join(parts)

    def run(self, requests: Sequence[EngineRequest]) -> "Run":
        """Start requests, made by :mod:`galley.service.requests` and its like; iterate over the result."""
        return Run(self, requests)

    def close(self) -> None:
        """Free the model. Further calls fail."""
        with self._lock:
            engine, self._loaded = self._loaded, None
            if engine is not None:
                engine.close()

    def _submit(self, requests: Sequence[EngineRequest], queue: "deque[Output]") -> None:
        with self._lock:
            for request in requests:
                self.engine.add(request)
                self._queues[request.id] = queue

    def _step(self, queue: "deque[Output]") -> None:
        """Run one engine step. Outputs for other threads or suspended runs go to their queues."""
        with self._lock:
            # Another thread's step may have filled the queue while this one waited.
            if not queue:
                for output in self.engine.step():
                    self._queues[output.request_id].append(output)

    def _forget(self, request_ids: Collection[str], queue: "deque[Output]") -> None:
        """Abort requests and remove their outputs from their queue."""
        with self._lock:
            for request_id in request_ids:
                self._queues.pop(request_id, None)
            if self._loaded is not None:
                self._loaded.abort(request_ids)
            kept = [output for output in queue if output.request_id not in request_ids]
            queue.clear()
            queue.extend(kept)


class Run:
    """Iterator over the outputs of some requests; it ends when all have finished.

    The engine steps only while a run is iterated. A caller that stops early calls :meth:`close`.
    """

    def __init__(self, engine: LocalEngine, requests: Sequence[EngineRequest]) -> None:
        self._engine = engine
        self._queue: deque[Output] = deque()
        self._unfinished: set[str] = set()
        self.add(requests)

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Add requests to the run; may be called during iteration."""
        self._engine._submit(requests, self._queue)
        self._unfinished.update(request.id for request in requests)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """Abort requests; no further outputs of them are returned. Finished requests are ignored."""
        ids = set(request_ids)
        self._engine._forget(ids, self._queue)
        self._unfinished -= ids

    def close(self) -> None:
        """Abort all unfinished requests."""
        self.cancel(list(self._unfinished))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        while self._unfinished and not self._queue:
            self._engine._step(self._queue)
        if not self._queue:
            raise StopIteration
        output = self._queue.popleft()
        if output.finish_reason is not None:
            self.cancel([output.request_id])
        return output
