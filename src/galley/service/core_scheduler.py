"""Turns of the engines that share the cores: the one that has acquired them computes on all; others wait.

Each engine has a thread on every core, and an op is done when the last of its threads is. If the kernel
scheduled two engines that compute at the same time, each would wait, op by op, for threads that the
kernel has just taken off their core. So engines take turns of some milliseconds, by deficit round robin:
an op that exceeds its engine's turn is paid back, turn by turn, before that engine has its next turn.
Live audio interrupts the turns of other engines and has longer turns, until these are used up: it has
most of the time, and no engine starves.

The lock on the cores is one byte of a file that the engines share. The kernel releases the lock whenever
its holder dies. The file also holds the engines' accounts; what a dead engine leaves in them is harmless.
"""

import mmap
import os
import time
from collections.abc import Callable
from typing import Final

from galley.machine import nameless_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TURN_SECONDS: Final = 0.010
"""Seconds per turn while another engine waits; otherwise the engine keeps the cores."""
LIVE_SHARE: Final = 4
"""Length of a turn for live audio, in normal turns: with two engines, live audio has 80 % of the time."""
MOST_OWED: Final = 1.0
"""Maximum debt of an engine in seconds; a longer op was delayed by something else."""

_CORES: Final = 0
"""Offset of the byte locked by the engine whose turn it is."""
_NEXT: Final = 1
"""Offset of the byte locked by the first waiting engine; an engine that yields queues behind it."""
_BYTES: Final = 24
"""Size of an engine's account: the length of its turns, the rest of the current one, and a waiting flag."""
_STEP_ASIDE_SECONDS: Final = 0.0002
"""Time for a waiting engine to acquire the cores after they are released."""


def core_scheduler_file(engines: int) -> int:
    """Return the descriptor of a new file that ``engines`` engines can share; it has no name to remove."""
    file = nameless_file("galley-core-scheduler")
    os.truncate(file, engines * _BYTES)
    return file


class CoreScheduler:
    """One engine's side of the core scheduler. For use in one thread.

    Args:
        file: the descriptor from :func:`core_scheduler_file`.
        place: the engine's index, from 0.
        clock: returns the time in seconds.
    """

    def __init__(self, file: int, place: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._me = place
        self._clock = clock
        accounts = memoryview(mmap.mmap(file, 0)).cast("d")
        engines = len(accounts) // 3
        # The first two are in seconds; a negative remainder is time that the engine owes.
        self._turn, self._left = accounts[:engines], accounts[engines : 2 * engines]
        self._waits = accounts[2 * engines :]  # 1 or 0
        self._others = [engine for engine in range(engines) if engine != place]
        self._held = False
        self._counted = clock()  # time up to which usage is counted
        self._turn[place] = self._left[place] = TURN_SECONDS
        self._waits[place] = 0

    def acquire(self, *, live: bool) -> None:
        """Wait for the cores before a step, unless this engine holds them. ``live``: for live audio."""
        me = self._me
        self._turn[me] = TURN_SECONDS * (LIVE_SHARE if live else 1)
        if self._held:
            self.pause()
            return
        # An engine without work did not delay the others.
        idle = self._clock() - self._counted
        self._left[me] = min(self._left[me] + idle, self._turn[me])
        self._wait()

    def pause(self) -> None:
        """Yield the cores if the turn is over and another engine is due; call this often within a step."""
        if not self._held:
            return
        self._count()
        if self._left[self._me] > 0:
            if self._should_yield():
                self._unlock(_CORES)
                self._wait()
            return
        awaited = self._awaited()
        while self._left[self._me] <= 0:
            for other in self._others:
                self._credit(other)
            if awaited and self._is_due():
                self._unlock(_CORES)
                self._wait()
                return
            self._credit(self._me)

    def release(self) -> None:
        """Release the cores while there is no work. Harmless when they are not held."""
        if self._held:
            self._count()
            self._unlock(_CORES)
            self._held = False
            self._turn[self._me] = TURN_SECONDS

    def _wait(self) -> None:
        self._held = False
        self._waits[self._me] = 1
        self._stand_in_line()
        for _ in self._others:  # not forever: a dead engine can appear to be waiting
            if self._left[self._me] > 0 or not self._is_due():
                break
            self._unlock(_CORES)
            time.sleep(_STEP_ASIDE_SECONDS)
            self._stand_in_line()
        self._waits[self._me] = 0
        self._held = True
        self._counted = self._clock()

    def _stand_in_line(self) -> None:
        self._lock(_NEXT)
        self._lock(_CORES)
        self._unlock(_NEXT)

    def _is_due(self) -> bool:
        """Return whether a waiting engine has some of its turn left."""
        return any(self._waits[other] and self._left[other] > 0 for other in self._others)

    def _should_yield(self) -> bool:
        """Return whether live audio waits with turn time left; the rest of this turn is kept for later."""
        mine = self._turn[self._me]
        return (
            any(self._turn[other] > mine and self._left[other] > 0 for other in self._others)
            and self._awaited()
        )

    def _credit(self, engine: int) -> None:
        """Give an engine another turn; turns do not add up."""
        turn = self._turn[engine]
        self._left[engine] = min(self._left[engine] + turn, turn)

    def _count(self) -> None:
        now = self._clock()
        left = self._left[self._me] - (now - self._counted)
        self._left[self._me] = max(left, -MOST_OWED)
        self._counted = now

    def _awaited(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _NEXT)
        except BlockingIOError:
            return True
        self._unlock(_NEXT)
        return False

    def _lock(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, byte)

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
