"""The doctor on other machines' kernel files, and on this machine."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from galley.bench.report import Machine, Spread
from galley.doctor import cores, gpu, memory, process, processor, runtimes, speed, storage
from galley.doctor.findings import Context, Finding, Host, worst
from galley.settings.config import Settings
from tests.cli.command import free_port, galley

CPUS = len(os.sched_getaffinity(0))
GIB = 2**30
GENOA = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\n"


def context(root: Path, files: dict[str, str] | None = None, **settings: object) -> Context:
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Context(Settings(**settings), Host(root))  # type: ignore[arg-type]


def named(findings: list[Finding], check: str) -> Finding:
    [finding] = [finding for finding in findings if finding.check == check]
    assert not finding.cost or finding.remedy, "what costs something can be helped"
    return finding


def found(check: str, findings: list[Finding]) -> tuple[str, str]:
    finding = named(findings, check)
    return finding.level, finding.found


def test_threads_beyond_a_quota_are_a_problem(tmp_path: Path) -> None:
    quota = {"/sys/fs/cgroup/cpu.max": "100000 100000"}
    findings = cores.check(context(tmp_path, quota, threads=CPUS + 1))
    level, text = found("threads", findings)
    if CPUS > 1:
        assert level == "problem"
        assert f"{CPUS + 1} threads on 1 usable cores ({CPUS} by affinity" in text
    assert named(findings, "threads").remedy.startswith("--threads 1")


def test_execution_providers_are_listed(tmp_path: Path) -> None:
    level, text = found("onnxruntime", runtimes.check(context(tmp_path)))
    assert level == "ok"
    assert "CPUExecutionProvider" in text


def test_threads_beyond_the_cores_are_a_warning_and_fewer_a_note(tmp_path: Path) -> None:
    assert found("threads", cores.check(context(tmp_path, threads=CPUS + 1)))[0] == "warning"
    if CPUS > 1:
        assert found("threads", cores.check(context(tmp_path)))[0] == "ok"
        assert found("threads", cores.check(context(tmp_path, threads=CPUS - 1)))[0] == "note"


@pytest.mark.skipif(CPUS < 2, reason="one core has no sibling")
def test_hyperthreads_and_nodes(tmp_path: Path) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    cpu = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    shared = {cpu.format(n): f"{first},{second}" for n in (first, second)}
    apart = {cpu.format(n): str(n) for n in (first, second)}
    siblings = cores.check(context(tmp_path / "shared", shared))
    assert "2 CPUs are 1 cores" in named(siblings, "hyperthreads").found
    assert "hyperthreads" not in {f.check for f in cores.check(context(tmp_path / "apart", apart))}
    node = "/sys/devices/system/node/node{}/cpulist"
    lists = {node.format(0): f"{first}", node.format(1): f"{second}"}
    assert found("NUMA", cores.check(context(tmp_path / "two", lists)))[0] == "warning"
    one = context(tmp_path / "one", {node.format(0): "0-4095", node.format(1): ""})
    assert found("NUMA", cores.check(one))[0] == "ok"


def test_cpu_lists() -> None:
    assert cores.cpus_in("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert cores.cpus_in("") == set()


@pytest.mark.parametrize(("load", "level"), [(0.01, "ok"), (99.0, "warning")])
def test_load_of_others(tmp_path: Path, load: float, level: str) -> None:
    busy = context(tmp_path, {"/proc/loadavg": f"{load} 1.0 1.0 2/300 12345"})
    assert found("load", cores.check(busy))[0] == level


def meminfo(total: int, available: int, swap: int = 0) -> dict[str, str]:
    lines = (
        f"MemTotal:       {total // 1024} kB",
        f"MemAvailable:   {available // 1024} kB",
        f"SwapTotal:      {swap // 1024} kB",
        "SwapFree:              0 kB",
    )
    return {"/proc/meminfo": "\n".join(lines)}


def test_memory_is_the_containers(tmp_path: Path) -> None:
    limits = {
        "/sys/fs/cgroup/memory.max": str(8 * GIB),
        "/sys/fs/cgroup/memory.current": str(7 * GIB),
        "/proc/self/cgroup": "0::/",
    }
    findings = memory.check(context(tmp_path, limits | meminfo(64 * GIB, 60 * GIB)))
    level, text = found("memory", findings)
    assert (level, text) == ("warning", "1 GiB of 8 GiB available (the container's limit)")
    roomy = memory.check(context(tmp_path / "roomy", meminfo(64 * GIB, 60 * GIB)))
    assert found("memory", roomy) == ("ok", "60 GiB of 64 GiB available (the machine's memory)")
    crowded = memory.check(context(tmp_path / "crowded", meminfo(64 * GIB, 8 * GIB)))
    assert found("memory", crowded)[0] == "warning"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("always [madvise] never", "ok"),
        ("[always] madvise never", "ok"),
        ("always madvise [never]", "warning"),
    ],
)
def test_huge_pages(tmp_path: Path, text: str, level: str) -> None:
    files = meminfo(GIB, GIB) | {"/sys/kernel/mm/transparent_hugepage/enabled": text}
    assert found("huge pages", memory.check(context(tmp_path, files)))[0] == level
    none = memory.check(context(tmp_path / "none", meminfo(GIB, GIB)))
    assert found("huge pages", none)[0] == "warning"


def test_swapped_memory(tmp_path: Path) -> None:
    swapped = memory.check(context(tmp_path, meminfo(8 * GIB, 4 * GIB, swap=GIB)))
    assert found("swap", swapped) == ("warning", "1 GiB swapped out")


def test_kernels_of_this_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from galley import _native

    supported = _native.supported_isas()
    here = Context(Settings(), Host())
    [finding] = processor.check(here)
    assert finding.figures["isa"] == supported[0]
    monkeypatch.setenv("GALLEY_CPU_ISA", "portable")
    [forced] = processor.check(here)
    assert forced.level == "warning"
    assert "unset GALLEY_CPU_ISA" in forced.remedy
    monkeypatch.setenv("GALLEY_CPU_ISA", "mmx")
    [unknown] = processor.check(here)
    assert unknown.level == "problem"
    monkeypatch.delenv("GALLEY_CPU_ISA")
    if supported[0] != "amx":
        lost = context(tmp_path, {"/proc/cpuinfo": "processor : 0\nflags : avx2 avx512f amx_tile"})
        [finding] = processor.check(lost)
        assert finding.level == "warning"
        assert "AMX" in finding.found


def test_without_native_kernels() -> None:
    code = (
        "import sys\n"
        "sys.modules['galley._native'] = None\n"
        "from galley.cli.main import app\n"
        "app(['doctor', '--port', '0'], standalone_mode=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("PROBLEM  kernels: the native kernels cannot be imported"), done
    assert "C++17" in done.stdout
    assert "open files" in done.stdout


PCI = "/sys/bus/pci/devices/0000:01:00.0/"
NVIDIA = {PCI + "class": "0x030200", PCI + "vendor": "0x10de"}
DRIVER = "/proc/driver/nvidia/version"
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Oct  1 00:00:00 UTC 2024"


def test_a_missing_gpu_is_a_finding_only_if_one_is_required(tmp_path: Path) -> None:
    network = {PCI + "class": "0x020000", PCI + "vendor": "0x10de"}
    assert gpu.check(context(tmp_path, network)) == []
    assert found("GPU", gpu.check(context(tmp_path, device="cuda")))[0] == "problem"


@pytest.mark.parametrize(
    ("driver", "cuda", "level", "says"),
    [
        (None, "12.8", "problem", "not loaded"),
        ("570.86.15", None, "problem", "not installed"),
        ("570.86.15", "", "problem", "without CUDA"),
        ("470.57.02", "12.8", "problem", "525 or later"),
        ("570.86.15", "13.0", "problem", "580 or later"),
        ("570.86.15", "12.8", "ok", "torch for CUDA 12.8"),
    ],
)
def test_driver_and_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: str | None,
    cuda: str | None,
    level: str,
    says: str,
) -> None:
    monkeypatch.setattr(gpu, "torch_cuda", lambda: cuda)
    monkeypatch.setattr(gpu, "has_triton", lambda: True)
    files = NVIDIA | ({DRIVER: VERSION.format(driver)} if driver else {})
    finding = named(gpu.check(context(tmp_path, files, device="cuda")), "GPU")
    assert finding.level == level
    assert says in finding.found
    assert not driver or f"driver {driver}" in finding.found
    assert worst(gpu.check(context(tmp_path, files))) in ("note", "warning")


@pytest.mark.parametrize("installed", [True, False])
def test_triton_is_required_where_the_gpu_executor_is(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "torch_cuda", lambda: "12.8")
    monkeypatch.setattr(gpu, "has_triton", lambda: installed)
    files = NVIDIA | {DRIVER: VERSION.format("570.86.15")}
    finding = named(gpu.check(context(tmp_path, files, device="cuda", executor="gpu")), "GPU")
    assert finding.level == ("ok" if installed else "problem")
    assert ("galley-inference[gpu]" in finding.remedy) != installed
    chosen = named(gpu.check(context(tmp_path, files, device="cuda")), "GPU")
    assert chosen.level == ("ok" if installed else "warning")
    assert ("many times slower" in chosen.cost) != installed
    for other in ("reference", "cpu"):
        finding = named(gpu.check(context(tmp_path, files, device="cuda", executor=other)), "GPU")
        assert finding.level == "ok"


def test_torch_says_what_it_was_built_for(tmp_path: Path) -> None:
    """As in the wheels of PyTorch, and in the torch that is installed here."""
    version = tmp_path / "version.py"
    version.write_text("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n")
    assert gpu.cuda_of(version) == "12.8"
    version.write_text("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n")
    assert gpu.cuda_of(version) == ""
    import torch

    assert gpu.torch_cuda() == (torch.version.cuda or "")


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "new"))
    findings = storage.check(context(tmp_path))
    assert {f.check for f in findings} == {"weight cache", "disk"}
    assert float(named(findings, "disk").figures["bytes_per_s"]) > 0
    assert not any(path.name.endswith(".partial") for path in tmp_path.iterdir())
    assert {f.check for f in storage.check(context(tmp_path), measure=False)} == {"weight cache"}
    off = storage.check(context(tmp_path, weight_cache=False))
    assert found("weight cache", off)[0] == "note"
    monkeypatch.setenv("GALLEY_CACHE_DIR", "/proc/none")
    assert worst(storage.check(context(tmp_path))) == "warning"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        level, text = found("port", process.check(context(tmp_path, port=port)))
        assert (level, f":{port} cannot be bound" in text) == ("problem", True)
    assert found("port", process.check(context(tmp_path, port=port)))[0] == "ok"


def measured(read: float, float32: float, spread: float = 0.0) -> Machine:
    def rate(value: float) -> Spread:
        return Spread(value, value * (1 - spread / 2), value * (1 + spread / 2))

    return Machine(
        cpu="AMD EPYC 9R14",
        isa="avx512",
        cores=2,
        threads=2,
        caches=(),
        read_huge=rate(read * 1e9),
        read_small=rate(read * 1e9),
        operations={"float32": rate(float32 * 1e9)},
    )


def test_what_a_model_name_should_give(tmp_path: Path) -> None:
    row = speed.processor_of(context(tmp_path, {"/proc/cpuinfo": GENOA + "\nprocessor\t: 1"}))
    assert row is not None
    assert row.name == "EPYC 9004 (Genoa)"
    assert row.sources
    # A core's share of 460.8 GB/s is 4.8; its peak is 32 operations in each of 3.4 cycles a nanosecond.
    assert speed.bandwidth(measured(9.6, 200), row).level == "ok"
    assert speed.bandwidth(measured(5.0, 200), row).level == "warning"
    assert speed.arithmetic(measured(9.6, 200), row).level == "ok"
    throttled = speed.arithmetic(measured(9.6, 100), row)
    assert throttled.level == "warning"
    assert "46%" in throttled.found
    z80 = context(tmp_path / "new", {"/proc/cpuinfo": "model name : Z80"})
    assert speed.processor_of(z80) is None
    assert speed.bandwidth(measured(5.0, 200), None).level == "note"
    assert speed.arithmetic(measured(5.0, 200), None).level == "note"


def test_processes_that_interfere(tmp_path: Path) -> None:
    quiet, stolen = speed.Interference(0.0, 0), speed.Interference(0.05, 0)
    assert speed.steadiness(measured(9, 200), quiet).level == "ok"
    assert speed.steadiness(measured(9, 200, spread=0.4), quiet).level == "warning"
    assert speed.steadiness(measured(9, 200), stolen).level == "warning"
    assert speed.steadiness(measured(9, 200), speed.Interference(0.0, 3)).level == "problem"
    stat = "cpu  {} 0 0 {} 0 0 0 {} 0 0\ncpu0 1"
    before = speed.cpu_times(context(tmp_path, {"/proc/stat": stat.format(10, 90, 0)}))
    after = speed.cpu_times(context(tmp_path, {"/proc/stat": stat.format(80, 100, 20)}))
    assert speed.stolen_share(before, after) == pytest.approx(0.2)
    group = {
        "/proc/self/cgroup": "0::/pod",
        "/sys/fs/cgroup/pod/cpu.stat": "nr_periods 9\nnr_throttled 4",
    }
    assert speed.throttled(context(tmp_path / "v2", group)) == 4


def test_a_governor_that_saves_power(tmp_path: Path) -> None:
    cpu = "/sys/devices/system/cpu/cpu0/cpufreq/"
    slow = {cpu + "scaling_governor": "powersave", cpu + "scaling_driver": "acpi-cpufreq"}
    assert found("clock", speed.governor(context(tmp_path, slow)))[0] == "warning"
    adaptive = slow | {cpu + "scaling_driver": "intel_pstate"}
    assert speed.governor(context(tmp_path, adaptive)) == []


def test_the_command(tmp_path: Path) -> None:
    """On this machine, whatever it is: the table, the same as JSON, and the matching exit code."""
    page = tmp_path / "doctor.json"
    done = galley("doctor", "--port", free_port(), "--json", page)
    report = json.loads(page.read_text())
    assert done.returncode == {"ok": 0, "note": 0, "warning": 1, "problem": 2}[report["level"]]
    checks = {finding["check"] for finding in report["findings"]}
    assert {"kernels", "threads", "NUMA", "memory", "huge pages", "port", "open files"} <= checks
    assert {"disk", "memory bandwidth", "arithmetic", "neighbors"} <= checks
    for finding in report["findings"]:
        assert f"{finding['check']}: {finding['found']}" in done.stdout
        assert not finding["cost"] or finding["remedy"]
    assert re.search(r"\d+ ok, \d+ note, \d+ warning, \d+ problem", done.stdout)


def test_json_alone_and_a_problem_for_scripts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = galley("doctor", "--no-measure", "--port", port, "--json", "-")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["level"] == "problem"
    assert "disk" not in {finding["check"] for finding in report["findings"]}


def test_help_imports_nothing_that_measures() -> None:
    code = (
        "import sys\n"
        "from galley.cli.main import app\n"
        "app(['doctor', '--help'], standalone_mode=False)\n"
        "print(sorted(m for m in sys.modules if m in ('numpy', 'galley._native', 'galley.doctor')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
