"""galley bench, as a process, on the bundled model."""

import json
from pathlib import Path

from .command import galley


def test_the_machine_is_measured_and_written_down(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    done = galley("bench", "machine", "--memory-mib", 8, "--repeats", 2, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "read, huge pages" in done.stdout
    machine = json.loads(file.read_text())["machine"]
    assert machine["read_huge"]["median"] > 0
    assert set(machine["operations"]) == {"int8", "bf16", "float32"}


def test_the_engine_is_measured_and_written_down(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    work = ("--prompt", 24, "--decode", 2, "--context", 8, "--batch", "1,3", "--repeats", 1)
    model = ("--executor", "cpu", "--weight-dtype", "int4", "--threads", 1)
    done = galley("bench", "engine", *work, *model, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "prefill 24" in done.stdout
    assert "decode, 3 at once" in done.stdout
    page = json.loads(file.read_text())
    assert [(p["work"], p["batch"], p["tokens"]) for p in page["points"]] == [
        ("prefill", 1, 24),
        ("decode", 1, 2),
        ("decode", 3, 2),
    ]
    assert page["settings"]["weight_dtype"] == "int4"
    assert page["settings"]["prefix_cache"] is False
    assert page["workload"]["context"] == 8
    assert all(p["python_ms"]["median"] > 0 for p in page["points"])


def test_wrong_sizes_and_folders_are_reported_before_any_work(tmp_path: Path) -> None:
    wrong = galley("bench", "engine", "--batch", "1,few")
    assert wrong.returncode == 2
    assert "'1,few'" in wrong.stderr
    missing = galley("bench", "machine", "--json", tmp_path / "no" / "file.json")
    assert missing.returncode == 2
    assert "does not exist" in missing.stderr
    assert galley("bench", "engine", "--prefix-cache").returncode == 2
    vectors = galley("bench", "engine", "galley-demo-embed")
    assert vectors.returncode == 2
    assert "galley-demo-embed returns vectors or scores" in vectors.stderr
    assert "galley graph galley-demo-embed" in vectors.stderr
