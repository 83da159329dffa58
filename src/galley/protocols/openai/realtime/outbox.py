"""The events of a response, which may have to wait until it is certain that it is wanted."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Outbox:
    """Sends events, or keeps them in order until they are released."""

    def __init__(self, send: Send, *, held: bool = False) -> None:
        """Begin with no events.

        Args:
            send: sends an event to the client.
            held: whether to keep events until :meth:`release`.
        """
        self._to_client = send
        self._kept: list[Mapping[str, Any]] | None = [] if held else None
        self._released = asyncio.Event()
        if not held:
            self._released.set()

    @property
    def holds(self) -> bool:
        """Whether events are kept."""
        return self._kept is not None

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send an event, or keep it."""
        if self._kept is None:
            await self._to_client(event)
        else:
            self._kept.append(event)

    async def release(self) -> None:
        """Send what was kept, and from now on each event at once."""
        while self._kept:  # more may come while these are being sent
            kept, self._kept = self._kept, []
            for event in kept:
                await self._to_client(event)
        self._kept = None
        self._released.set()

    async def released(self) -> None:
        """Wait for :meth:`release`."""
        await self._released.wait()
