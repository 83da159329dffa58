"""Waits for a caller who says nothing after an answer: ``idle_timeout_ms``."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from galley.protocols.openai.realtime.turn_ends import report


class Silence:
    """A timer, and what it begins when it is over."""

    def __init__(self, over: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin with no timer. ``over``: run in a task when the time is over."""
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def wait(self, seconds: float) -> None:
        """Wait, from now on, instead of what was waited for before."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def stop(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop waiting, and cancel what runs."""
        self.stop()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._over())
        self._task.add_done_callback(report)
