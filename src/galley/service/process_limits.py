"""Resource limits of a process that handles hostile input, and what it does when its parent ends."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2)."""
_WATCH_SECONDS: Final = 0.02


def give_way() -> None:
    """Make this process the first that the kernel kills for memory, and disable core files.

    A core file would contain data that clients sent.
    """
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; only on Linux."""
    with suppress(AttributeError):  # other systems have no prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_growth(more: int) -> None:
    """End this process if its memory grows by more than ``more`` bytes from now on.

    On Linux the kernel refuses address space beyond the limit, so Python code sees a ``MemoryError`` and
    native code aborts. macOS does not enforce such limits: there, a thread looks at the resident memory
    every 20 ms and aborts. It cannot while native code holds the interpreter's lock.
    """
    if resource is None:
        return
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        _watcher.limit(more)
        return
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _Watcher:
    """A thread that aborts this process once its resident memory has exceeded a limit."""

    def __init__(self) -> None:
        self._most = 0
        self._thread: threading.Thread | None = None

    def limit(self, more: int) -> None:
        """Allow ``more`` bytes in addition to the most that have been resident so far."""
        self._most = _peak_bytes() + more
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while _peak_bytes() <= self._most:
            time.sleep(_WATCH_SECONDS)
        os.abort()


_watcher: Final = _Watcher()


def _peak_bytes() -> int:
    """Return the most bytes that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
