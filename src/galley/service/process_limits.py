"""What keeps a process that does hostile work within its bounds."""

import os
import resource
from contextlib import suppress
from pathlib import Path


def give_way() -> None:
    """Be the first that the kernel kills for memory, and leave no core file of what clients sent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_growth(more: int) -> None:
    """Let the address space grow by ``more`` bytes."""
    with suppress(OSError):  # no /proc
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + more
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
