"""A real ``galley rank`` process for tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.server.serving import until


class Rank:
    """A ``galley rank`` process."""

    def __init__(self, folder: Path, log: Path, links: dict[str, str], **environ: str) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in links.items()]
        command = [sys.executable, "-m", "galley", "rank", str(folder), "--port=0", "--threads=1"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--no-weight-cache", *flags],
                stdout=file,
                stderr=file,
                env={**os.environ, **environ},
            )

        def address() -> str | None:
            assert self.process.poll() is None, log.read_text()
            found = log.read_text().partition("ready for an engine at ")[2].split()
            return found[0] if found else None

        self.address = str(until(address, 60))

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that compute, and last the one that waits for the next engine."""
        found = until(psutil.Process(self.process.pid).children, 60)
        return sorted(found, key=lambda one: one.create_time())

    @property
    def worker(self) -> psutil.Process:
        """The first process that computes, or the one that waits."""
        return self.workers[0]

    def close(self) -> None:
        """End it; the processes that compute end, too."""
        workers = self.workers
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert until(lambda: not any(one.is_running() for one in workers), 10)


@contextmanager
def ranks(folder: Path, tmp_path: Path, links: dict[str, str], count: int) -> Iterator[list[Rank]]:
    with ExitStack() as stack:
        made = []
        for i in range(count):
            made.append(Rank(folder, tmp_path / f"rank-{i}", links))
            stack.callback(made[-1].close)
        yield made
