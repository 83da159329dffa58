"""A store that may fail: requests then continue without it, and the log says so once."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from galley.cache.store import StoreError

log = logging.getLogger("galley.cache")

T = TypeVar("T")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""Seconds for which a store that failed is left alone; doubled with each failure in a row."""


class Guard:
    """Tries one kind of operation, and leaves it out for a while after a failure.

    Attributes:
        failures: operations that failed, or were left out.
    """

    def __init__(self, what: str, timeout: float) -> None:
        """Create a guard.

        Args:
            what: the operation, for the log.
            timeout: seconds that an operation may take.
        """
        self.failures = 0
        self._what = what
        self._timeout = timeout
        self._pause = 0.0
        self._until = 0.0

    async def run(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of ``work``; None if it failed or was left out."""
        now = time.monotonic()
        if now < self._until:
            self.failures += 1
            return None
        if self._pause:
            # One operation finds out whether the store works again; meanwhile others do without it.
            self._until = now + self._timeout
        try:
            async with asyncio.timeout(self._timeout):
                found = await work()
        except (StoreError, TimeoutError) as error:
            self._failed(error)
            return None
        if self._pause:
            self._pause = self._until = 0.0
            log.warning("the response cache is %s again", self._what)
        return found

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if not self._pause:
            reason = str(error) or f"it took more than {self._timeout:g} s"
            log.warning(
                "the response cache cannot be %s (%s); requests are answered without it",
                self._what,
                reason,
            )
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))
        self._until = time.monotonic() + self._pause
