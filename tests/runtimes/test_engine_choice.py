"""The engine chosen for a model when none is named."""

from pathlib import Path

import pytest

from galley.errors import ModelNotFound
from galley.formats.source import resolve_model
from galley.gateway.model_files import fingerprint
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import engine_of
from tests.runtimes import onnx_files


def test_files_and_folders_choose_their_engine(tmp_path: Path) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    assert engine_of(str(file)) == engine_of(str(tmp_path)) == "onnx"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert engine_of(str(tmp_path)) == "onnx"
    # A checkpoint that was also exported: its weights are for Galley's own engine.
    (tmp_path / "model.safetensors").touch()
    assert engine_of(str(tmp_path)) == "native"
    for other in ("", "galley-demo", "org/name", "/nowhere/at/all", "x" * 5000, "\0"):
        assert engine_of(other) == "native", other


def test_a_named_engine_is_taken() -> None:
    assert EngineSettings(model="m.onnx").engine_name == "onnx"
    assert EngineSettings(model="m.onnx", engine="other").engine_name == "other"


def test_a_file_is_found_and_its_changes_are_seen(tmp_path: Path) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    assert resolve_model(str(file)) == file
    before = fingerprint(file)
    (tmp_path / "other.onnx").touch()
    assert fingerprint(file) == before
    (tmp_path / "m.onnx.data").touch()
    assert fingerprint(file) != before
    with pytest.raises(ModelNotFound, match=r"the file .*missing\.onnx does not exist"):
        resolve_model(str(tmp_path / "missing.onnx"))
    with pytest.raises(ModelNotFound, match=r"missing\.onnx does not exist"):
        resolve_model("missing.onnx")
