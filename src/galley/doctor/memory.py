"""Checks of memory: how much may be taken, huge pages, swap."""

import re
from typing import Final

from msgspec.structs import replace

from galley.doctor.findings import Context, Finding
from galley.machine import bytes_text, memory

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_LITTLE: Final = 2 << 30
"""Bytes below which hardly any useful model fits."""

_CROWDED: Final = 0.2
"""Available share of the limit, below which other processes use too much."""

_THP: Final = "/sys/kernel/mm/transparent_hugepage/"


def check(context: Context) -> list[Finding]:
    """Check limits, huge pages and swap."""
    return [_limits(context), *_address_space(), _huge_pages(context), *_swap(context)]


def _limits(context: Context) -> Finding:
    host = context.host
    found = memory(host.cgroup, host.membership, host.root / "proc/meminfo")
    total = _meminfo(context, "MemTotal")
    where = "the container's limit" if found.limit < total else "the machine's memory"
    finding = Finding(
        check="memory",
        level="ok",
        found=f"{bytes_text(found.available)} of {bytes_text(found.limit)} available ({where})",
        figures={
            "limit_bytes": found.limit,
            "available_bytes": found.available,
            "machine_bytes": total,
        },
    )
    if found.available < _LITTLE:
        return replace(
            finding,
            level="warning",
            cost="room for about a billion parameters in int4 and a small KV cache, at most",
            remedy="raise the limit or use a larger machine; galley plan MODEL shows what a model needs",
        )
    if found.available < _CROWDED * found.limit:
        return replace(
            finding,
            level="warning",
            cost="the KV cache is sized by available memory: fewer concurrent requests",
            remedy="stop other processes that use memory",
        )
    return finding


def _address_space() -> list[Finding]:
    if resource is None:
        return []
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    return [
        Finding(
            check="ulimit -v",
            level="warning",
            found=f"address space is limited to {bytes_text(limit)}",
            cost="mapped checkpoints, stacks and memory that is never touched also count",
            remedy="ulimit -v unlimited; limit memory with a container instead",
            figures={"limit_bytes": limit},
        )
    ]


def _huge_pages(context: Context) -> Finding:
    chosen = re.search(r"\[(\w+)\]", context.host.text(_THP + "enabled"))
    if chosen is None:
        return Finding(
            check="huge pages",
            level="warning",
            found="the kernel has no transparent huge pages",
            cost="5 to 30 % of the decoding speed, lost to TLB misses when reading weights",
            remedy="use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
            figures={"mode": "none"},
        )
    mode = chosen[1]
    if mode == "never":
        return Finding(
            check="huge pages",
            level="warning",
            found="transparent huge pages are off",
            cost="5 to 30 % of the decoding speed, lost to TLB misses when reading weights",
            remedy=f"echo madvise > {_THP}enabled (as root, on the host)",
            figures={"mode": mode},
        )
    return Finding(
        check="huge pages",
        level="ok",
        found=f"transparent huge pages: {mode}",
        figures={"mode": mode},
    )


def _swap(context: Context) -> list[Finding]:
    total = _meminfo(context, "SwapTotal")
    used = total - _meminfo(context, "SwapFree")
    if used < 64 << 20:
        return []
    return [
        Finding(
            check="swap",
            level="warning",
            found=f"{bytes_text(used)} swapped out",
            cost="every stream stalls while weights or KV cache are read back from disk",
            remedy="add memory or run less; swapoff -a, or vm.swappiness=0",
            figures={"used_bytes": used},
        )
    ]


def _meminfo(context: Context, name: str) -> int:
    """Return the bytes of a field; 0 if the kernel does not report it."""
    match = re.search(rf"^{name}:\s+(\d+)", context.host.text("/proc/meminfo"), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0
