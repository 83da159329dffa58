"""What this process may use of the machine: cores and memory, container limits included."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_cores(cgroup: Path = CGROUP) -> int:
    """CPU affinity, or the cgroup's quota (v2 ``cpu.max``, v1 ``cpu.cfs_quota_us``) if less."""
    cores = len(os.sched_getaffinity(0))
    v2 = _read(cgroup / "cpu.max").split()
    v1 = [_read(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    for limit in (v2, v1):
        if len(limit) == 2 and all(number.isdigit() for number in limit):
            quota, period = map(int, limit)
            cores = min(cores, max(1, round(quota / period)))
    return cores


def available_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """Bytes that can still be taken: the kernel's MemAvailable, or what the cgroup leaves if less."""
    available = int(_table(_read(meminfo))["MemAvailable:"]) * 1024
    for limit_file, usage_file, stat_file, dropped in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        limit, usage = _read(cgroup / limit_file), _read(cgroup / usage_file)
        if limit.isdigit() and usage.isdigit():
            # File pages that the kernel can drop count as usage but not as need.
            spare = int(_table(_read(cgroup / stat_file)).get(dropped, "0"))
            available = min(available, max(0, int(limit) - int(usage) + spare))
    return available


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _table(text: str) -> dict[str, str]:
    """First word of a line -> second."""
    return {words[0]: words[1] for words in map(str.split, text.splitlines()) if len(words) > 1}
