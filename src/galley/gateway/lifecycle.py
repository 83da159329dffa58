"""The server's state (starting, serving or draining) and the number of requests in flight."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from galley.types.engine_stats import EngineState

State = EngineState | Literal["draining"]

RETRY_SECONDS: Final = 5.0
"""Seconds after which to retry a request to a server that is starting or stopping."""


class Lifecycle:
    """The server's state, from the start of the engine to the end of the drain."""

    def __init__(self, engine_state: Callable[[], EngineState]) -> None:
        self._engine_state = engine_state
        self._draining = asyncio.Event()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> State:
        """The current state."""
        return "draining" if self._draining.is_set() else self._engine_state()

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered."""
        return self._in_flight

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the server stops."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining.set()

    async def draining(self) -> None:
        """Wait until the server begins to stop."""
        await self._draining.wait()

    async def finished(self) -> None:
        """Wait until the last request in flight is answered."""
        await self._idle.wait()

    def enter(self) -> None:
        """Count a request that arrives."""
        self._in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request that is answered, or whose client is gone."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
