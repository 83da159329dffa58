"""Buffers for large bodies, of which some are used again: new memory costs more than what is received."""

import mmap
from typing import Final

_KEPT: Final = 64 << 20
"""The most bytes of all buffers that are kept."""


class LargeBodies:
    """The buffers of one server. For use in one thread."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return a buffer of a size, which nobody else has as long as there is a view of it.

        What it contains is not defined. One that is not kept takes memory only as it is written, so that
        nobody gets memory by declaring a length.
        """
        free = [one for one in self._kept if len(one) >= size and not _is_used(one)]
        if free:
            return memoryview(min(free, key=len))[:size]
        if sum(map(len, self._kept)) + size > _KEPT:
            self._kept = [one for one in self._kept if _is_used(one)]
        if sum(map(len, self._kept)) + size > _KEPT:
            return memoryview(mmap.mmap(-1, size))
        self._kept.append(bytearray(size))
        return memoryview(self._kept[-1])


def _is_used(buffer: bytearray) -> bool:
    """Return whether there is a view of a buffer, whose size then cannot be changed."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    del buffer[-1:]
    return False
