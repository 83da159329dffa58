"""Checks of memory: how much may be taken, huge pages, swap."""

import re
from typing import Final

from msgspec.structs import replace

from galley.doctor.findings import Asked, Finding
from galley.machine import bytes_text, memory

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_LITTLE: Final = 2 << 30
"""Bytes below which hardly any useful model fits."""

_CROWDED: Final = 0.2
"""Share of available memory in the limit, below which others take too much."""

_THP: Final = "/sys/kernel/mm/transparent_hugepage/"


def check(asked: Asked) -> list[Finding]:
    """Check limits, huge pages and swap."""
    return [_limits(asked), *_address_space(), _huge_pages(asked), *_swap(asked)]


def _limits(asked: Asked) -> Finding:
    host = asked.host
    found = memory(host.cgroup, host.membership, host.root / "proc/meminfo")
    total = _meminfo(asked, "MemTotal")
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
            cost="room for about a billion parameters in int4 beside a small KV cache, at most",
            remedy="a larger limit or machine; galley plan MODEL says what a model needs",
        )
    if found.available < _CROWDED * found.limit:
        return replace(
            finding,
            level="warning",
            cost="the KV cache is sized by what is available: fewer requests at a time",
            remedy="stop what else holds memory here",
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
            found=f"addresses are limited to {bytes_text(limit)}",
            cost="mapped checkpoints, stacks and memory that is never touched count, too",
            remedy="ulimit -v unlimited; a container limits what is used instead",
            figures={"limit_bytes": limit},
        )
    ]


def _huge_pages(asked: Asked) -> Finding:
    chosen = re.search(r"\[(\w+)\]", asked.host.text(_THP + "enabled"))
    if chosen is None:
        return Finding(
            check="huge pages",
            level="warning",
            found="the kernel has no transparent huge pages",
            cost="5 to 30 % of the speed of decoding: weights are read through more page tables",
            remedy="a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
            figures={"mode": "none"},
        )
    mode = chosen[1]
    if mode == "never":
        return Finding(
            check="huge pages",
            level="warning",
            found="transparent huge pages are off",
            cost="5 to 30 % of the speed of decoding: weights are read through more page tables",
            remedy=f"echo madvise > {_THP}enabled (as root, on the host)",
            figures={"mode": mode},
        )
    return Finding(
        check="huge pages",
        level="ok",
        found=f"transparent huge pages: {mode}",
        figures={"mode": mode},
    )


def _swap(asked: Asked) -> list[Finding]:
    total = _meminfo(asked, "SwapTotal")
    used = total - _meminfo(asked, "SwapFree")
    if used < 64 << 20:
        return []
    return [
        Finding(
            check="swap",
            level="warning",
            found=f"{bytes_text(used)} are swapped out",
            cost="weights or keys and values that come back from disk stop everybody's tokens",
            remedy="more memory or less in it; swapoff -a, or vm.swappiness=0",
            figures={"used_bytes": used},
        )
    ]


def _meminfo(asked: Asked, name: str) -> int:
    """Return the bytes of a field; 0 if the kernel does not report it."""
    match = re.search(rf"^{name}:\s+(\d+)", asked.host.text("/proc/meminfo"), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0
