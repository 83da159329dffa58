"""The machine is measured on its own hardware; its description is parsed from the kernel's files."""

from pathlib import Path

import pytest

from galley import _native
from galley.bench.machine import KINDS, PHASES, caches, measure_machine
from galley.bench.report import Cache
from galley.errors import SettingsError
from galley.machine import cpu_name


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_every_instruction_set_can_be_measured(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLEY_CPU_ISA", isa)
    phases: list[None] = []
    machine = measure_machine(
        threads=2,
        memory_bytes=3 << 20,
        seconds=0.001,
        repeats=2,
        on_phase=lambda: phases.append(None),
    )
    assert machine.isa == isa
    assert machine.threads == 2
    assert len(phases) == PHASES
    assert set(machine.operations) == set(KINDS)
    for rate in (machine.read_huge, machine.read_small, *machine.operations.values()):
        assert 0 < rate.low <= rate.median <= rate.high


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(SettingsError, match="MiB are available"):
        measure_machine(memory_bytes=1 << 60)


def test_the_first_cores_caches_are_listed(tmp_path: Path) -> None:
    for name, level, kind, size in (
        ("index0", 1, "Data", "48K"),
        ("index2", 2, "Unified", "1024K"),
        ("index3", 3, "Unified", "32M"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "type").write_text(f"{kind}\n")
        (folder / "size").write_text(f"{size}\n")
    assert caches(tmp_path) == (
        Cache(1, "data", 48 << 10),
        Cache(2, "unified", 1 << 20),
        Cache(3, "unified", 32 << 20),
    )
    assert caches(tmp_path / "nothing") == ()


def test_the_cpus_name_is_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert cpu_name(tmp_path / "cpuinfo") == "Some CPU @ 3 GHz"
    assert cpu_name(tmp_path / "nothing")
