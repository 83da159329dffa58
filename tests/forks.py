"""Processes that were forked, not started by :mod:`subprocess`."""

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable


class Fork:
    """A forked process, with the parts of :class:`subprocess.Popen` that tests and Galley use.

    Attributes:
        pid: its number, which no other process has before :meth:`poll` or :meth:`wait` has seen its end.
        returncode: its exit code, or minus the signal that ended it; None: its end has not been seen.
    """

    def __init__(self, pid: int, status_of: Callable[[int], int]) -> None:
        """Watch a process.

        Args:
            pid: its number.
            status_of: returns the wait status of an ended process, and releases its number.
        """
        self.pid = pid
        self.returncode: int | None = None
        self._status_of = status_of
        self._file = os.pidfd_open(pid)  # readable once the process has ended
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._file)

    def poll(self) -> int | None:
        """Return the exit code, or None if the process runs."""
        with self._lock:
            if self.returncode is None and self._ended(0):
                self.returncode = os.waitstatus_to_exitcode(self._status_of(self.pid))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises:
            subprocess.TimeoutExpired: it runs after ``timeout`` seconds.
        """
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def _ended(self, timeout: float | None) -> bool:
        ended = select.poll()  # unlike select(), for any number of open files
        ended.register(self._file, select.POLLIN)
        return bool(ended.poll(None if timeout is None else 1000 * timeout))

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)
