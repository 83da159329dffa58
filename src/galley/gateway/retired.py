"""The backends of files that have been replaced, until their last calls have ended."""

import asyncio
from collections.abc import Iterator
from typing import Final

from galley.gateway.backend import Backend

_POLL_SECONDS: Final = 0.1


class RetiredBackends:
    """Backends that receive no new calls; each is closed after its last open one. For one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._backends: list[Backend] = []

    def __iter__(self) -> Iterator[Backend]:
        """Return those that still have calls."""
        return iter(self._backends)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def add(self, backend: Backend) -> None:
        """Close a backend once it is unused."""
        self._backends.append(backend)
        task = asyncio.create_task(self._close_unused(backend))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all backends now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close_unused(self, backend: Backend) -> None:
        try:
            await until_unused(backend)
        finally:
            await backend.close()
            self._backends.remove(backend)


async def until_unused(backend: Backend) -> None:
    """Wait for the last open call of a backend that receives no new ones."""
    while backend.busy:  # noqa: ASYNC110 - a weak set cannot notify
        await asyncio.sleep(_POLL_SECONDS)
