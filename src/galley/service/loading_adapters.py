"""The LoRA adapters that a model's engine is loading, and the callers that wait for them."""

import asyncio
from collections.abc import Callable

from galley.errors import EngineNotReady, ModelError
from galley.service.frames import AdapterLoaded, LoadAdapter
from galley.types import Adapter


class LoadingAdapters:
    """The callers that wait for adapters, by the adapter's digest. For use in one event loop."""

    def __init__(self) -> None:
        """Create it with no adapter being loaded."""
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def load(self, adapter: Adapter, send: Callable[[LoadAdapter], None]) -> None:
        """Load an adapter and wait for it; concurrent calls for one adapter share a single load.

        Raises:
            ModelError: the adapter cannot be used.
            EngineNotReady: the engine ended while it loaded the adapter.
        """
        loaded = self._waiting.get(adapter.digest)
        if loaded is None:
            loaded = self._waiting[adapter.digest] = asyncio.get_running_loop().create_future()
            send(LoadAdapter(adapter))
        await asyncio.shield(loaded)

    def loaded(self, frame: AdapterLoaded) -> None:
        """Pass the engine's result for an adapter to the callers that wait for it."""
        waiting = self._waiting.pop(frame.digest)
        if frame.error is None:
            waiting.set_result(None)
        else:
            _fail(waiting, ModelError(frame.error))

    def lost(self) -> None:
        """Fail all loads because the engine ended; a load is its likely cause, so none is retried here."""
        for waiting in self._waiting.values():
            error = EngineNotReady("the engine ended while loading the adapter", retry_after=1.0)
            _fail(waiting, error)
        self._waiting.clear()


def _fail(waiting: asyncio.Future[None], error: Exception) -> None:
    waiting.set_exception(error)
    waiting.exception()  # mark it as retrieved, in case the caller is gone
