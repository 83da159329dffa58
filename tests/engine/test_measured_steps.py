"""Step times are measured once for weights, settings and machine, and kept next to packed weights."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from galley.engine import build_generation, load_draft
from galley.engine.loaders import load_engine
from galley.engine.warm_up import measure_rows
from galley.ops.packed_files import packed_folder
from galley.settings.engine import EngineSettings
from tests.checkpoints import make_checkpoint

SMALL = EngineSettings(threads=1, kv_cache_tokens=512)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, and an empty cache folder."""
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "cache"))
    return make_checkpoint(tmp_path / "model", "llama")


def test_measured_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **named: Any) -> dict[int, float]:
        calls.append(1)
        return measure_rows(*arguments, **named)

    for module in (build_generation, load_draft):
        monkeypatch.setattr(module, "measure_rows", counted)

    def measured(**changes: Any) -> int:
        calls.clear()
        load_engine(dataclasses.replace(SMALL, **changes), folder).close()
        return len(calls)

    assert [measured(), measured()] == [1, 0]
    assert [measured(weight_dtype="int8"), measured(weight_dtype="int8")] == [1, 0]
    assert [measured(draft_model=str(folder)), measured(draft_model=str(folder))] == [1, 0]
    assert [measured(threads=2), measured()] == [1, 0]
    assert [measured(weight_cache=False), measured(speculation="off")] == [1, 0]
    for path in packed_folder().glob("*.measured"):
        path.write_bytes(b"{}")
    assert [measured(), measured()] == [1, 0]
    make_checkpoint(folder, "llama", seed=7)
    assert [measured(), measured()] == [1, 0]
