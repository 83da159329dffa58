"""What a model's digest covers."""

from pathlib import Path

import numpy as np
import pytest

from galley.formats.model_files import files_digest, files_of_file
from galley.gateway.model_files import fingerprint


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


@pytest.mark.parametrize("name", ["weights.bin", "sub/" + "w" * 150])
def test_external_data_of_any_name_are_part_of_an_onnx_file(tmp_path: Path, name: str) -> None:
    """The file is written by the library onnx; names of more than 127 bytes have a longer length."""
    onnx = pytest.importorskip("onnx")
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), dtype=np.float32), "w")
    place = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 4]) for n in "xy"]
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", place[:1], place[1:], [weight])
    (tmp_path / "sub").mkdir()
    model, data = tmp_path / "model.onnx", tmp_path / name
    onnx.save_model(
        onnx.helper.make_model(graph),
        str(model),
        save_as_external_data=True,
        location=name,
        size_threshold=0,
    )
    (tmp_path / "weights.txt").write_text("of something else")
    before, loaded = files_digest(model), fingerprint(model)
    (tmp_path / "weights.txt").write_text("changed")
    assert files_digest(model) == before
    data.write_bytes(data.read_bytes()[::-1])
    assert files_digest(model) != before
    assert fingerprint(model) != loaded


def test_what_lies_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(b"1")
    model = folder / "model.onnx"
    model.write_bytes(b"\x0a\x08location\x12\x0a../outside\x0a\x08location\x12\x7f")
    assert files_of_file(model) == [model]
