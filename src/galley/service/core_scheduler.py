"""Engines on the same cores take turns: the one that has acquired them computes, on all; the others wait.

Each engine has a thread on every core, and an op is done when the last of its threads is. Left to the
kernel, two engines that compute at the same time would each wait, op by op, for threads that it has just
taken off their core. So engines take turns of some milliseconds, by deficit round robin: an op that takes
more than its engine's turn is paid back, turn by turn, before that engine has the next. Live audio
interrupts others' turns and has longer ones, until it has used them up: it has most of the time, and nobody
starves.

The cores are locked by a byte of a file that the engines share. The kernel frees the lock when its holder
dies, at any moment. The file also holds the engines' accounts; what a dead engine leaves there is harmless.
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
"""Length of a turn while another engine waits; an engine that nobody waits for goes on."""
LIVE_SHARE: Final = 4
"""Turns of an engine that hears live audio are so many times as long: of two engines it has 80 %."""
MOST_OWED: Final = 1.0
"""Seconds to be paid back at most: what took longer was held up by something else."""

_CORES: Final = 0
"""The byte that the engine whose turn it is has locked."""
_NEXT: Final = 1
"""The byte that the first of the waiting engines has locked: who releases the cores comes after it."""
_BYTES: Final = 24
"""Of an engine's account: the length of its turns, how much of one is left, and whether it waits."""
_STEP_ASIDE_SECONDS: Final = 0.0002
"""For a waiting engine to acquire cores that are free."""


def core_scheduler_file(engines: int) -> int:
    """The descriptor of a new file, which as many engines can share. It has no name to be cleaned up."""
    file = nameless_file("galley-core-scheduler")
    os.truncate(file, engines * _BYTES)
    return file


class CoreScheduler:
    """One engine's side of the taking of turns. For one thread.

    Args:
        file: as :func:`core_scheduler_file` made it.
        place: of the engine, from 0.
        clock: in seconds.
    """

    def __init__(self, file: int, place: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._me = place
        self._clock = clock
        accounts = memoryview(mmap.mmap(file, 0)).cast("d")
        engines = len(accounts) // 3
        # The first two in seconds; below 0 is what an engine took too much.
        self._turn, self._left = accounts[:engines], accounts[engines : 2 * engines]
        self._waits = accounts[2 * engines :]  # 1 or 0
        self._others = [engine for engine in range(engines) if engine != place]
        self._held = False
        self._counted = clock()  # up to when what was used is counted
        self._turn[place] = self._left[place] = TURN_SECONDS
        self._waits[place] = 0

    def acquire(self, *, live: bool) -> None:
        """Before a step: wait for the cores, unless this engine has them. ``live``: for live audio."""
        me = self._me
        self._turn[me] = TURN_SECONDS * (LIVE_SHARE if live else 1)
        if self._held:
            self.pause()
            return
        # While this engine had no work, it used no time of the others.
        idle = self._clock() - self._counted
        self._left[me] = min(self._left[me] + idle, self._turn[me])
        self._wait()

    def pause(self) -> None:
        """Often within a step: if the turn is over and another engine is due, let it have the cores."""
        if not self._held:
            return
        self._count()
        if self._left[self._me] > 0:
            if self._gives_way():
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
        """There is no work for now. Harmless when the cores are not held."""
        if self._held:
            self._count()
            self._unlock(_CORES)
            self._held = False
            self._turn[self._me] = TURN_SECONDS

    def _wait(self) -> None:
        self._held = False
        self._waits[self._me] = 1
        self._stand_in_line()
        for _ in self._others:  # not for ever: an engine that died may seem to wait
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
        """Whether another engine waits that has some of its turn left."""
        return any(self._waits[other] and self._left[other] > 0 for other in self._others)

    def _gives_way(self) -> bool:
        """Whether live audio waits that has not used up its turn; the rest of this turn is for later."""
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
