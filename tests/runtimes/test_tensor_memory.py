"""The memory of tensor models: measured, and refused where it does not fit."""

from pathlib import Path
from typing import Any

import pytest

from galley.engine.memory import RESERVE_BYTES
from galley.errors import NotEnoughMemory
from galley.runtimes import library_memory
from galley.runtimes import onnx as engine
from galley.server.ledger import ledger_lines
from galley.settings.engine import EngineSettings
from galley.types.model_info import Ledger
from tests.runtimes import onnx_files

MIB = 2**20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of 63 MiB."""
    return onnx_files.perceptron(tmp_path_factory.mktemp("large") / "large.onnx", hidden=500_000)


def ledger_of(path: Path, options: str = "") -> Ledger:
    announced: list[Ledger] = []
    settings = EngineSettings(
        model=str(path), threads=2, engine_options=options, weight_cache=False
    )
    made = engine.load(settings, path, on_ledger=announced.append)
    assert announced == [made.info.ledger]
    made.close()
    return announced[0]


def test_the_memory_is_measured(large: Path) -> None:
    engine.import_onnxruntime()
    size = large.stat().st_size
    one = ledger_of(large)
    assert 0.9 * size < one.weights + one.buffers < 4 * size
    two = ledger_of(large, '{"instances": 2, "max_batch_size": 16}')
    assert two.weights + two.buffers > 1.8 * size
    assert (one.step_tokens, two.step_tokens) == (64, 16)
    assert (one.device, one.threads, one.executor) == ("cpu", 2, "onnxruntime")
    assert one.total == one.weights + one.buffers + one.reserve < one.available
    lines = ledger_lines("large", one)
    assert lines[0] == "large: onnxruntime_onnx, batches of up to 64 rows"
    assert [line.split()[0] for line in lines[1:]] == [
        "runs",
        "weights",
        "buffers",
        "reserve",
        "total",
    ]


def test_a_model_that_cannot_fit_is_not_loaded(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    free = RESERVE_BYTES + 2 * large.stat().st_size - 1
    monkeypatch.setattr(library_memory, "available_memory", lambda: free)
    monkeypatch.setattr(engine._Sessions, "of_model", never)
    with pytest.raises(NotEnoughMemory, match=r"(?s)needs .*1 B more.*fewer instances than 2"):
        ledger_of(large, '{"instances": 2}')


def test_what_is_measured_has_to_fit(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes more than the file has."""
    free = RESERVE_BYTES + large.stat().st_size
    monkeypatch.setattr(library_memory, "available_memory", lambda: free)
    with pytest.raises(NotEnoughMemory, match=r"large\.onnx does not fit in memory: it needs "):
        ledger_of(large, '{"batch_axis": "first", "batch_invariant": true}')


def test_external_data_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = onnx_files.with_external_data(tmp_path / "m.onnx")
    size = file.stat().st_size + (tmp_path / "m.data").stat().st_size
    assert engine.load.least_bytes(file) == size
    # The file is searched again once it has changed.
    onnx_files.perceptron(file)
    assert engine.load.least_bytes(file) == file.stat().st_size
    file = onnx_files.with_external_data(file)
    monkeypatch.setattr(library_memory, "available_memory", lambda: RESERVE_BYTES + size - 1)
    with pytest.raises(NotEnoughMemory):
        ledger_of(file)
