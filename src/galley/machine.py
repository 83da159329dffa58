"""Resources of the machine that this process may use: cores and memory, container limits included."""

import ctypes
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
VMSTAT = Path("/proc/vmstat")
PROCESS = Path("/proc/self")

_IMPORTED: Final = time.monotonic()

FOLDER_VARIABLE: Final = "GALLEY_CACHE_DIR"
"""Variable that names the cache folder."""

ASSUMED_READ_RATE: Final = 1e9
"""Bytes per second assumed of an unmeasured disk: a plain NVMe drive, or a fast cloud volume."""

MOST_OPEN_FILES: Final = 1 << 20
"""Open files that this process uses at most where the system has no limit."""
_OPEN_MAX: Final = 10_240
"""From macOS's syslimits.h."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameters of mallopt(3), from malloc.h."""
_OWN_PAGES_BYTES: Final = 128 * 1024
"""Buffers of at least this size get pages of their own."""


def cache_folder() -> Path:
    """Return the folder of files that can be made again: GALLEY_CACHE_DIR, or else the user's.

    It need not exist.

    Raises:
        OSError: neither folder is known.
    """
    if own := os.environ.get(FOLDER_VARIABLE):
        return Path(own).absolute()
    # The XDG specification ignores relative paths.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        raise OSError("this user has no home folder")
    return base / "galley"


def available_cores(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> int:
    """Return the number of usable cores: CPU affinity, or the cgroup's quota if that is less.

    The quota (v2 ``cpu.max``, v1 ``cpu.cfs_quota_us``) is rounded down to whole cores: with one thread
    more, the kernel would throttle all of them repeatedly.
    """
    cores = len(usable_cpus())
    for folder in _folders(cgroup, membership, "cpu"):
        v2 = _read(folder / "cpu.max").split()
        v1 = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for limit in (v2, v1):
            if len(limit) == 2 and all(number.isdigit() for number in limit):
                quota, period = map(int, limit)
                cores = min(cores, max(1, quota // period))
    return cores


def usable_cpus() -> set[int]:
    """Return the numbers of the CPUs this process may run on; all where the system keeps no such list."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


_reserved_for_others = 0
"""Bytes; see :func:`reserve_for_others`."""


def reserve_for_others(count: int) -> None:
    """Exclude ``count`` bytes from this process's available memory: other processes will take them."""
    global _reserved_for_others
    _reserved_for_others = count


_UTIME, _STIME = 11, 12
"""Places of CPU times among the fields of /proc/PID/stat after the name, proc_pid_stat(5)."""
_CPU_CLOCK: Final = 2
"""The clock of a process, CPUCLOCK_SCHED of the kernel: the time for which its threads ran."""


class Memory(NamedTuple):
    """The memory limit, and how much of it is still available, in bytes."""

    limit: int
    available: int


def available_memory(
    cgroup: Path = CGROUP, membership: Path = MEMBERSHIP, meminfo: Path = MEMINFO
) -> int:
    """Return the available bytes: the kernel's MemAvailable, or what a cgroup leaves if that is less.

    Memory left to others (:func:`reserve_for_others`) is excluded.
    """
    return max(0, memory(cgroup, membership, meminfo).available - _reserved_for_others)


def held_memory(pid: int) -> int:
    """Return the bytes that a process holds and :func:`available_memory` has not counted.

    Pages of mapped files are available memory to the kernel, but not to a cgroup's limit (:func:`memory`).
    The result is 0 for a process that has ended.
    """
    status = _table(_read(Path("/proc") / str(pid) / "status"))
    total = _table(_read(MEMINFO)).get("MemTotal:", "0")
    limited = memory().limit < int(total) * 1024
    names = ("RssAnon:", "RssShmem:", *(("RssFile:",) if limited else ()))
    return sum(int(status.get(name, 0)) * 1024 for name in names)


def resident_memory(pid: int) -> int:
    """Return the bytes that a process has resident, pages of mapped files included; 0 if it has ended."""
    status = _table(_read(Path("/proc") / str(pid) / "status"))
    return int(status.get("VmRSS:", 0)) * 1024


def with_descendants(pids: Iterable[int]) -> list[int]:
    """Return processes and all that they have started; these alone where the system has no /proc."""
    found = list(pids)
    for pid in found:  # grows meanwhile
        texts = (_read(path) for path in Path(f"/proc/{pid}/task").glob("[0-9]*/children"))
        found += [int(child) for text in texts for child in text.split()]
    return found


def peak_memory(parent: int, *, running: str) -> int | None:
    """Return the most bytes that a child process has had resident so far, pages of mapped files included.

    Args:
        parent: process id of its parent.
        running: a part of its command line.

    Returns:
        The sum over such children; None if there is none, or the system does not report it.
    """
    peaks = []
    for process in Path("/proc").glob("[0-9]*"):
        status = _table(_read(process / "status"))
        if status.get("PPid:") == str(parent) and running in _read(process / "cmdline"):
            peaks.append(int(status.get("VmHWM:", 0)) * 1024)
    return sum(peaks) or None


def cpu_seconds(parent: int) -> float:
    """Return the CPU time that a process and its living descendants have used; 0 if it has ended."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        # The second field is the name in brackets, which may contain spaces.
        fields = _read(process / "stat").rpartition(")")[2].split()
        if len(fields) > _STIME:
            pid = int(process.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks = int(fields[_UTIME]) + int(fields[_STIME])
            used[pid] = ticks / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [parent]
    while waiting:
        pid = waiting.pop()
        total += _cpu_clock(pid) or used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


def _cpu_clock(pid: int) -> float:
    """Return the CPU time of a process, to the nanosecond; /proc counts ticks of 10 ms. 0: not known.

    The clock's number is that of clock_getcpuclockid(3).
    """
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    return 0.0


def memory(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP, meminfo: Path = MEMINFO) -> Memory:
    """Return the memory of the machine, or of the cgroup (v1 or v2) that leaves the least."""
    table = _table(_read(meminfo))
    if not table:
        return _physical_memory()
    least = Memory(*(int(table[name]) * 1024 for name in ("MemTotal:", "MemAvailable:")))
    for folder in _folders(cgroup, membership, "memory"):
        for limit_file, usage_file, own, mapped in (
            ("memory.max", "memory.current", "", "file_mapped"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "total_mapped_file"),
        ):
            limit, usage = _read(folder / limit_file), _read(folder / usage_file)
            if limit.isdigit() and usage.isdigit():
                # File pages that no process has mapped count as usage, but the kernel drops them on demand.
                # They are mostly weights of an engine that has ended. "Active" only means that they were
                # read often.
                stat = _table(_read(folder / "memory.stat"))
                idle, used, held = (
                    int(stat.get(name, "0"))
                    for name in (f"{own}inactive_file", f"{own}active_file", mapped)
                )
                left = max(0, int(limit) - int(usage) + max(idle, idle + used - held))
                least = min(least, Memory(int(limit), left), key=lambda m: m.available)
    return least


def oom_kills(
    cgroup: Path = CGROUP, membership: Path = MEMBERSHIP, vmstat: Path = VMSTAT
) -> int | None:
    """Return how many processes the kernel has killed for lack of memory; None if it does not say.

    Counted are those of this process's cgroup (v1 or v2) and below, or else those of the machine.
    """
    for folder in _folders(cgroup, membership, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _table(_read(folder / name)).get("oom_kill")) is not None:
                return int(count)
    count = _table(_read(vmstat)).get("oom_kill")
    return None if count is None else int(count)


def _physical_memory() -> Memory:
    """Return the memory without /proc (macOS), where half is assumed available as no figure is reported."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Memory(total, total // 2)


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the CPU's name in /proc/cpuinfo; on ARM, where that file has no name, the architecture."""
    match = re.search(r"model name\s*: (.*)", _read(cpuinfo))
    return match[1] if match else platform.machine()


def cpu_features(cpuinfo: Path = CPUINFO) -> str:
    """Return the CPU's instruction sets and other features in /proc/cpuinfo; empty where it has none."""
    match = re.search(r"^(?:flags|Features)\s*: (.*)", _read(cpuinfo), re.MULTILINE)
    return match[1] if match else ""


def cpu_and_cores() -> str:
    """Return the CPU's name and the number of usable cores, for reports of measurements."""
    return f"{cpu_name()}, {available_cores()} cores"


def address_space_left() -> int:
    """Return how many more bytes ``ulimit -v`` lets this process map; ``sys.maxsize`` without a limit."""
    if resource is None:
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    statm = _read(PROCESS / "statm").split()
    if limit == resource.RLIM_INFINITY or not statm:
        return sys.maxsize
    pages = int(statm[0])
    return max(0, limit - pages * resource.getpagesize())


def raise_open_files() -> None:
    """Raise the limit of open files of this process and its children as far as the system allows."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    # macOS reports no hard limit and refuses more than its own, which is at least OPEN_MAX.
    for wanted in (MOST_OPEN_FILES, _OPEN_MAX) if hard == resource.RLIM_INFINITY else (hard,):
        if soft >= wanted:
            return
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def nameless_file(name: str) -> int:
    """Return the descriptor of a new file that is deleted when it is closed.

    The file is in memory on Linux, in the temporary folder elsewhere. ``name`` is shown to anyone who lists
    a process's files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def process_age() -> float:
    """Return the seconds since this process began, from the kernel (proc(5), ``starttime``).

    Without /proc (macOS), return the seconds since this module was imported.
    """
    # The command's name, in brackets, may contain any characters.
    after_name = _read(PROCESS / "stat").rpartition(")")[2].split()
    if not after_name:
        return time.monotonic() - _IMPORTED
    ticks = int(after_name[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def lower_thread_priority(niceness: int) -> None:
    """Set the niceness of the calling thread, where the system has one for single threads: on Linux."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def give_memory_back() -> None:
    """Make glibc's allocator return freed memory to the system, which it does not by default.

    By default each thread keeps its own heap, and freeing the first large buffer makes later ones come from
    the heap as well, where small long-lived blocks pin them. Call this before any threads are started.
    Other allocators are left as they are.
    """
    with suppress(OSError, AttributeError):
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_ARENA_MAX, 1)
        glibc.mallopt(_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
        glibc.mallopt(_TRIM_THRESHOLD, _OWN_PAGES_BYTES)


def bytes_text(count: float) -> str:
    """Format a byte count for users, with at least one digit before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def disk_read_text(count: int) -> str:
    """Format the bytes to be read from disk, and how long that takes at :data:`ASSUMED_READ_RATE`."""
    return f"{bytes_text(count)}, {count / ASSUMED_READ_RATE:.3g} s at {ASSUMED_READ_RATE / 1e9:g} GB/s"


def _folders(cgroup: Path, membership: Path, controller: str) -> list[Path]:
    """Return the cgroups this process is in, from its own up to the root: each may set a limit.

    Lines of ``/proc/self/cgroup`` are ``0::/path`` (v2) or ``5:cpu,cpuacct:/path`` (v1). In a container
    the path may be the host's and not exist here; the root is then the container's own.
    """
    folders = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            root = cgroup / controller if controllers else cgroup
            own = root / path.strip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders or [cgroup, cgroup / controller]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _table(text: str) -> dict[str, str]:
    """Return a mapping from the first word of each line to the second."""
    return {words[0]: words[1] for words in map(str.split, text.splitlines()) if len(words) > 1}
