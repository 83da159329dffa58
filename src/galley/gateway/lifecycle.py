"""What the server can do right now: start up, serve, drain; and who is still being served."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from galley.types.model_info import EngineState

State = EngineState | Literal["draining"]

RETRY_SECONDS: Final = 5.0
"""When to come back to a server that starts or stops."""


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
        """As of now."""
        return "draining" if self._draining.is_set() else self._engine_state()

    def drain(self) -> None:
        """From now on new requests are refused."""
        self._draining.set()

    async def draining(self) -> None:
        """Wait until the server begins to stop."""
        await self._draining.wait()

    async def finished(self) -> None:
        """Wait until the last request in flight is answered."""
        await self._idle.wait()

    def enter(self) -> None:
        """A request arrives."""
        self._in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is answered, or its client gone."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
