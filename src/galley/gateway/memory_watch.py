"""Refuses new work before the kernel kills a process for lack of memory."""

import time
from typing import Final

from galley.errors import MemoryPressure
from galley.machine import Memory, memory

_EVERY_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 5.0


class MemoryWatch:
    """Reads the memory of the container, or of the machine, at most twice a second."""

    def __init__(self, fraction: float) -> None:
        """Create the watch.

        Args:
            fraction: part of the limit that may be used, not counting file pages that the kernel can drop.
        """
        self._fraction = fraction
        self._looked = 0.0
        self._memory = Memory(0, 0)

    def now(self) -> Memory:
        """Return the limit and the available memory, at most half a second old."""
        if time.monotonic() - self._looked >= _EVERY_SECONDS:
            self._looked, self._memory = time.monotonic(), memory()
        return self._memory

    def check(self) -> None:
        """Raise MemoryPressure if too much is used."""
        limit, available = self.now()
        used = limit - available
        if used > self._fraction * limit:
            raise MemoryPressure(
                f"{used >> 20} of {limit >> 20} MiB of memory are used; new requests are rejected "
                "(--memory-limit-fraction)",
                retry_after=_RETRY_SECONDS,
            )
