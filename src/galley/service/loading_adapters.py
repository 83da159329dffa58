"""The LoRA adapters that a model's engine has been asked to read, until it says how that went."""

import asyncio
from collections.abc import Callable

from galley.errors import EngineNotReady, ModelError
from galley.service.frames import AdapterLoaded, LoadAdapter
from galley.types import Adapter


class LoadingAdapters:
    """Who waits for which, by digest. Of one event loop."""

    def __init__(self) -> None:
        """None yet."""
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def load(self, adapter: Adapter, send: Callable[[LoadAdapter], None]) -> None:
        """Have it read, once for all who ask meanwhile.

        Raises:
            ModelError: it cannot be used.
            EngineNotReady: the engine ended meanwhile.
        """
        loaded = self._waiting.get(adapter.digest)
        if loaded is None:
            loaded = self._waiting[adapter.digest] = asyncio.get_running_loop().create_future()
            send(LoadAdapter(adapter))
        await asyncio.shield(loaded)

    def loaded(self, frame: AdapterLoaded) -> None:
        """The engine has read one, or says why it cannot be used."""
        waiting = self._waiting.pop(frame.digest)
        if frame.error is None:
            waiting.set_result(None)
        else:
            _fail(waiting, ModelError(frame.error))

    def lost(self) -> None:
        """The engine ended while it loaded some: most likely of that, so nobody tries again by itself."""
        for waiting in self._waiting.values():
            error = EngineNotReady("the engine ended while it loaded the adapter", retry_after=1.0)
            _fail(waiting, error)
        self._waiting.clear()


def _fail(waiting: asyncio.Future[None], error: Exception) -> None:
    waiting.set_exception(error)
    waiting.exception()  # seen, though who asked may be gone
