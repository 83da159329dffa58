"""Memory limits as in a container."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.serving import until


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[Callable[[int], None]]:
    """A function that puts a process into a control group limited to ``limit`` bytes."""
    group = Path("/sys/fs/cgroup/memory") / f"galley-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs a writable hierarchy of control groups, version 1")
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield lambda pid: _write(group / "cgroup.procs", pid)
    finally:
        until(lambda: not (group / "cgroup.procs").read_text() or _leave(group))
        group.rmdir()


def _leave(group: Path) -> bool:
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            _write(group.parent / "cgroup.procs", int(pid))
    return False


def _write(path: Path, pid: int) -> None:
    path.write_text(str(pid))
