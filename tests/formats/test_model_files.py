"""What a model's digest covers."""

from pathlib import Path

import pytest

from galley.formats.model_files import files_digest


def test_files_in_the_folders_of_modules_are_part_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"path": ""}, {"path": "2_Dense"}, {"path": ".."}]')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    for folder in ("2_Dense", "onnx"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").write_bytes(b"dense")
    before = files_digest(tmp_path)
    (tmp_path / "onnx" / "model.safetensors").write_bytes(b"other")
    assert files_digest(tmp_path) == before, "a copy for another program"
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"other")
    assert files_digest(tmp_path) != before


@pytest.mark.parametrize("changed", ["model.onnx", "model.onnx.data"])
def test_the_external_data_of_an_onnx_file_are_part_of_it(tmp_path: Path, changed: str) -> None:
    for name in ("model.onnx", "model.onnx.data", "other.onnx"):
        (tmp_path / name).write_bytes(b"1")
    before = files_digest(tmp_path / "model.onnx")
    (tmp_path / "other.onnx").write_bytes(b"2")
    assert files_digest(tmp_path / "model.onnx") == before
    (tmp_path / changed).write_bytes(b"2")
    assert files_digest(tmp_path / "model.onnx") != before
