"""Container limits decide sizes, not the host's: cgroup v2 and v1 trees as the kernel writes them."""

import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from galley.machine import (
    available_cores,
    available_memory,
    cpu_seconds,
    oom_kills,
    raise_open_files,
    with_descendants,
)

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def cores(cgroup: Path, membership: str = "") -> int:
    cgroup.mkdir(exist_ok=True)
    (cgroup / "self").write_text(membership)
    return available_cores(cgroup, cgroup / "self")


def memory(cgroup: Path, meminfo: Path, membership: str = "") -> int:
    (cgroup / "self").write_text(membership)
    return available_memory(cgroup, cgroup / "self", meminfo)


def meminfo(root: Path, available: int) -> Path:
    write(root, {"meminfo": f"MemTotal: 99999 kB\nMemAvailable: {available // 1024} kB"})
    return root / "meminfo"


def test_memory_is_what_the_v2_limit_leaves(tmp_path: Path) -> None:
    cgroup = write(
        tmp_path,
        {
            "memory.max": str(4 * GIB),
            "memory.current": str(3 * GIB),
            "memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\nfile_mapped 7",
        },
    )
    assert memory(cgroup, meminfo(tmp_path, 64 * GIB)) == 2 * GIB
    assert memory(cgroup, meminfo(tmp_path, GIB)) == GIB


def test_memory_is_what_the_v1_limit_leaves(tmp_path: Path) -> None:
    cgroup = write(
        tmp_path,
        {
            "memory/memory.limit_in_bytes": str(2 * GIB),
            "memory/memory.usage_in_bytes": str(GIB),
            "memory/memory.stat": "total_inactive_file 0",
        },
    )
    assert memory(cgroup, meminfo(tmp_path, 64 * GIB)) == GIB


@pytest.mark.parametrize("own", ["", "total_"])
def test_weights_that_an_ended_engine_left_in_the_file_cache_are_free(
    tmp_path: Path, own: str
) -> None:
    """They were read often, so the kernel considers them active; those of a running process are mapped."""

    def left(active: int, inactive: int, mapped: int) -> int:
        folder, mapped_file = ("memory/", "total_mapped_file") if own else ("", "file_mapped")
        limit, usage = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if own
            else ("memory.max", "memory.current")
        )
        stat = {f"{own}active_file": active, f"{own}inactive_file": inactive, mapped_file: mapped}
        files = {
            limit: 8 * GIB,
            usage: 6 * GIB,
            "memory.stat": "\n".join(f"{name} {value}" for name, value in stat.items()),
        }
        cgroup = write(tmp_path, {folder + name: str(text) for name, text in files.items()})
        return memory(cgroup, meminfo(tmp_path, 64 * GIB)) // GIB

    assert left(active=4 * GIB, inactive=0, mapped=0) == 6
    assert left(active=4 * GIB, inactive=GIB, mapped=3 * GIB) == 4
    assert left(active=4 * GIB, inactive=GIB, mapped=5 * GIB) == 3


def test_no_limit_means_the_machine(tmp_path: Path) -> None:
    cgroup = write(tmp_path, {"memory.max": "max", "memory.current": "5", "cpu.max": "max 100000"})
    assert memory(cgroup, meminfo(tmp_path, 8 * GIB)) == 8 * GIB
    assert cores(cgroup) == cores(tmp_path / "nothing") >= 1


def test_cores_are_bounded_by_the_quota(tmp_path: Path) -> None:
    half = write(tmp_path / "v2", {"cpu.max": "50000 100000"})
    assert cores(half) == 1
    # Whole cores of a quota.
    if cores(tmp_path / "nothing") > 1:
        more = write(tmp_path / "more", {"cpu.max": "199999 100000"})
        assert cores(more) == 1
        two = write(tmp_path / "two", {"cpu.max": "200000 100000"})
        assert cores(two) == 2
    many = write(tmp_path / "many", {"cpu.max": "99900000 100000"})
    assert cores(many) == cores(tmp_path / "nothing")
    v1 = write(
        tmp_path / "v1", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}
    )
    assert cores(v1) == 1
    unlimited = write(
        tmp_path / "v1u", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    )
    assert cores(unlimited) == cores(tmp_path / "nothing")


def test_a_limit_anywhere_above_this_process_counts(tmp_path: Path) -> None:
    """A systemd unit: the limit is on the slice, not on the root or the innermost group."""
    cgroup = write(
        tmp_path,
        {
            "system.slice/galley.service/memory.max": "max",
            "system.slice/memory.max": str(3 * GIB),
            "system.slice/memory.current": str(GIB),
            "system.slice/cpu.max": "100000 100000",
        },
    )
    mine = "0::/system.slice/galley.service"
    assert memory(cgroup, meminfo(tmp_path, 64 * GIB), mine) == 2 * GIB
    assert cores(cgroup, mine) == 1
    v1 = write(
        tmp_path / "v1",
        {
            "memory/docker/abc/memory.limit_in_bytes": str(GIB),
            "memory/docker/abc/memory.usage_in_bytes": "0",
        },
    )
    membership = "7:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc"
    assert memory(v1, meminfo(tmp_path, 64 * GIB), membership) == GIB


_BUFFERS = """
import sys
from pathlib import Path
from galley.machine import give_memory_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "given back":
    give_memory_back()
b"x" * (8 << 20)  # from now on glibc takes buffers up to this size from the heap
filling = [b"x" * 60_000 for _ in range(200)]  # fills gaps of the heap, where small blocks pin nothing
before = resident()
large, small = [], []
for _ in range(16):
    large.append(b"x" * (4 << 20))
    small.append(b"x" * 60_000)
large.clear()
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's allocator")
@pytest.mark.parametrize("how", ["given back", "kept"])
def test_large_buffers_are_freed_in_spite_of_small_blocks(how: str) -> None:
    command = [sys.executable, "-c", _BUFFERS, how]
    kept = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert (kept < 2**23) == (how == "given back"), kept


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_is_followed_by_all_that_it_has_started() -> None:
    nested = "sh -c 'echo $$; sleep 60; :' & echo $!; wait"
    with subprocess.Popen(["sh", "-c", nested], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = {int(process.stdout.readline()) for _ in range(2)}
        until = time.monotonic() + 10
        found: list[int] = []
        while len(found) < 3 and time.monotonic() < until:
            found = with_descendants([process.pid])
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    assert found[0] == process.pid
    assert len(found) == 3
    assert started == {found[1]}
    assert with_descendants([process.pid]) == [process.pid]


def test_cpu_time_of_a_process_and_its_children_is_finer_than_a_tick() -> None:
    work = "import time\nwhile time.process_time() < 0.05: pass\n"
    wait = "print(flush=True); input()"
    child = f"import subprocess, sys\n{work}subprocess.run([sys.executable, '-c', {work + wait!r}])"
    command = [sys.executable, "-c", child]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = cpu_seconds(process.pid)
        process.communicate(b"\n")
    assert 0.1 <= used < 1
    assert abs(100 * used - round(100 * used)) > 1e-6
    assert cpu_seconds(process.pid) == 0


def test_open_files_where_a_limit_is_refused_that_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, which reports no hard limit."""
    limits = (256, resource.RLIM_INFINITY)

    def set_limits(_: int, wanted: tuple[int, int]) -> None:
        nonlocal limits
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    raise_open_files()
    assert limits == (10_240, resource.RLIM_INFINITY)


def test_kills_for_lack_of_memory_are_those_of_the_own_cgroup(tmp_path: Path) -> None:
    machine = write(tmp_path / "proc", {"vmstat": "pgfault 9\noom_kill 70"}) / "vmstat"
    v2 = write(tmp_path / "v2", {"app/memory.events": "oom 2\noom_kill 3", "self": "0::/app"})
    assert oom_kills(v2, v2 / "self", machine) == 3
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 5"
    v1 = write(
        tmp_path / "v1", {"memory/memory.oom_control": control, "self": "4:memory:/docker/x"}
    )
    assert oom_kills(v1, v1 / "self", machine) == 5
    root = write(tmp_path / "root", {"self": "0::/"})
    assert oom_kills(root, root / "self", machine) == 70
    assert oom_kills(root, root / "self", tmp_path / "none") is None
