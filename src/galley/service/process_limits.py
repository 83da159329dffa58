"""Resource limits of a process that handles hostile input."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def give_way() -> None:
    """Make this process the first that the kernel kills for memory, and disable core files.

    A core file would contain data that clients sent.
    """
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_growth(more: int) -> None:
    """Limit the growth of the address space to ``more`` bytes from now on."""
    if resource is None:
        return
    with suppress(OSError):  # no /proc
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + more
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
