"""A plan compared with this machine: the memory is the kernel's figure, and every figure is compared."""

import json
import math
import mmap
from pathlib import Path

import psutil

from galley.bench.predicted import resident
from tests.cli.command import galley


def test_memory_and_times_are_compared(tmp_path: Path) -> None:
    """Times have no bound here: they need a quiet machine.

    Memory has one: of this small model's 60 MiB Python uses about 4 while loading, which no plan includes.
    """
    page = tmp_path / "measured.json"
    sizes = ("--prompt", 40, "--output", 12, "--concurrency", 3)
    done = galley("plan", "--measure", "--precision", "int8", *sizes, "--json", page)
    assert done.returncode == 0, done.stderr
    compared = {row["quantity"]: row for row in json.loads(page.read_text())["compared"]}
    assert set(compared) == {"memory", "TTFT", "TPOT"}
    assert all(row["batch"] == 3 and row["precision"] == "int8" for row in compared.values())
    memory = compared["memory"]
    assert abs(memory["predicted"] / memory["measured"] - 1) < 0.1
    for row in compared.values():
        assert 0 < row["measured"] < math.inf
        assert 0 < row["predicted"] < math.inf
    assert "predicted" in done.stdout
    assert "TPOT" in done.stdout


def test_resident_memory_leaves_a_checkpoints_files_out(tmp_path: Path) -> None:
    size = 64 << 20
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_bytes(bytes(size))
    with checkpoint.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
    assert not any(mapped[:: mmap.PAGESIZE])
    rss = psutil.Process().memory_info().rss
    assert abs(resident() - rss) < 0.1 * size
    assert abs(resident(tmp_path) - (rss - size)) < 0.1 * size
    mapped.close()
