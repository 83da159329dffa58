"""A real ``galley replica`` process for tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

from tests import warm
from tests.server.serving import until


class Replica:
    """A ``galley replica`` process."""

    def __init__(self, folder: Path, log: Path, token: Path, port: int = 0, more: str = "") -> None:
        self._log = log
        flags = f"--threads 1 --kv-cache-tokens 32768 --max-adapters 4 --port {port} {more}".split()
        self._arguments = ["replica", str(folder), *flags, "--cluster-token-file", str(token)]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process: warm.Started = warm.start(
                self._arguments, environ=os.environ, stdout=log, stderr=log
            ) or subprocess.Popen(
                [sys.executable, "-m", "galley", *self._arguments], stdout=log, stderr=log
            )

        def address() -> str | None:
            assert self.process.poll() is None, self._log.read_text()
            found = self._log.read_text().partition("ready for servers at ")[2].split()
            return found[0] if found else None

        self.address = str(until(address, 120))
        self.port = int(self.address.rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text()

    def signal(self, number: int) -> None:
        """Send a signal to the process and its engine."""
        if self.process.poll() is None:
            process = psutil.Process(self.process.pid)
            for one in (*process.children(recursive=True), process):
                one.send_signal(number)
