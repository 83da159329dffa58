"""Passes what a thread receives to the engine's thread."""

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue with one reader, for which a wait costs one lock.

    ``queue.Queue`` makes a lock for each wait, and waits for two more. ``SimpleQueue.get`` may wait forever
    if its timeout has passed before it looks again, as it does on a busy machine (CPython 3.11).
    """

    def __init__(self) -> None:
        """Create an empty queue."""
        self._items: deque[T] = deque()
        self._there = threading.Lock()
        """Free if something may have been put since the reader looked last."""
        self._there.acquire()

    def put(self, item: T) -> None:
        """Add an item. Any thread may call this."""
        self._items.append(item)
        with suppress(RuntimeError):  # it is free already
            self._there.release()

    def get(self, timeout: float | None = None) -> T:
        """Remove the first item and return it; wait for one if there is none.

        Args:
            timeout: seconds to wait; 0 or less: not at all; None: as long as it takes.

        Raises:
            queue.Empty: there was none in that time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            if end is None:
                self._there.acquire()
                continue
            left = end - time.monotonic()
            if left <= 0 or not self._there.acquire(timeout=left):
                break
        if not self._items:
            raise queue.Empty
        return self._items.popleft()
