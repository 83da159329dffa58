"""Reads of a store over a network: those that wait share one round trip."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

_UNDER_WAY: Final = 2
"""Round trips at a time: one is on its way while the answers of the other are read."""
_MOST: Final = 256
"""Names in one round trip."""

Read = Callable[[Sequence[str]], Awaitable[list[bytes | None]]]


class GatheredReads:
    """Gathers the names to read while earlier reads are under way. For use in one event loop."""

    def __init__(self, read: Read) -> None:
        """Read with ``read``, which returns the value of each name or raises."""
        self._read = read
        self._waiting: list[tuple[str, asyncio.Future[bytes | None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the value of each name. Raises the errors of ``read``."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in names]
        self._waiting += zip(names, futures, strict=True)
        self._send()
        try:
            return [await future for future in futures]
        finally:
            # After an error or a cancellation nobody waits for the others.
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # otherwise asyncio logs that nobody has read it

    def _send(self) -> None:
        while self._waiting and len(self._tasks) < _UNDER_WAY:
            some, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            task = asyncio.create_task(self._read_some(some), name="galley-reads")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._send()

    async def _read_some(self, some: "list[tuple[str, asyncio.Future[bytes | None]]]") -> None:
        some = [(name, future) for name, future in some if not future.done()]
        if not some:
            return
        try:
            values = await self._read([name for name, _ in some])
        except asyncio.CancelledError:
            for _, future in some:
                future.cancel()
            raise
        except Exception as error:
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), value in zip(some, values, strict=True):
            if not future.done():
                future.set_result(value)

    async def close(self) -> None:
        """Give up what is under way. Idempotent."""
        for _, future in self._waiting:
            future.cancel()
        self._waiting = []
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
