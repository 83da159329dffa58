"""What keeps a process that does hostile work within its bounds."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def give_way() -> None:
    """Be the first that the kernel kills for memory, and leave no core file of what clients sent."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_growth(more: int) -> None:
    """Let the address space grow by ``more`` bytes."""
    if resource is None:
        return
    with suppress(OSError):  # no /proc
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + more
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
