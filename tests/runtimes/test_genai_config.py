"""What a folder of ONNX Runtime GenAI may say: no code to be loaded, and no files elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from galley.errors import CheckpointError
from galley.runtimes.genai_config import has_own_batches, most_texts, read_genai_config


def config(**options: Any) -> dict[str, Any]:
    decoder = {"filename": "model.onnx", "session_options": {"log_id": "a", **options}}
    return {"model": {"decoder": decoder, "type": "llama"}, "search": {"past_key_names": "k"}}


def read(folder: Path, text: str) -> dict[str, Any]:
    (folder / "genai_config.json").write_text(text)
    return read_genai_config(folder)


def test_what_the_builder_writes_is_read(tmp_path: Path) -> None:
    plain = config(provider_options=[{"cuda": {"enable_cuda_graph": "0"}}], custom_ops_library="")
    assert read(tmp_path, json.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"custom_ops_library": "ops.so"}, "custom_ops_library"),
        (
            {"provider_options": [{"qnn": {"backend_path": "x"}}]},
            "provider_options.qnn.backend_path",
        ),
        ({"provider_options": [{"a": {"trt_extra_plugin_lib_paths": "x"}}]}, "plugin_lib_paths"),
    ],
)
def test_code_is_refused(options: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{field}.*names code to be loaded"):
        read(tmp_path, json.dumps(config(**options)))


def test_code_does_not_hide_behind_a_repeated_name(tmp_path: Path) -> None:
    text = json.dumps(config(custom_ops_library="ops.so"))
    text = text.replace(
        '"custom_ops_library"', '"custom_ops_library": "ops.so", "custom_ops_library"'
    )
    with pytest.raises(CheckpointError, match="occurs twice"):
        read(tmp_path, text.replace(': "ops.so"}', ': ""}'))


@pytest.mark.parametrize("name", ["../model.onnx", "/tmp/model.onnx", "a/../../model.onnx"])
def test_files_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    changed = config()
    changed["model"]["decoder"]["filename"] = name
    with pytest.raises(CheckpointError, match=r"model\.decoder\.filename.*outside"):
        read(tmp_path, json.dumps(changed))


def test_as_many_texts_as_fit_are_a_batch(tmp_path: Path) -> None:
    """Of two layers with four heads of 16: 1024 bytes a token."""
    sizes = {"num_hidden_layers": 2, "num_key_value_heads": 4, "head_size": 16}
    model = {"model": {"decoder": sizes}}
    assert most_texts(model, tmp_path, 100, 3 * 102_400) == 3
    assert most_texts(model, tmp_path, 100, 3 * 102_400 - 1) == 2
    assert most_texts(model, tmp_path, 100, 0) == 1
    with pytest.raises(CheckpointError, match=r"model\.decoder\.num_hidden_layers"):
        most_texts(config(), tmp_path, 100, 1)


def test_folders_with_batches_or_devices_of_their_own_are_known(tmp_path: Path) -> None:
    assert not has_own_batches(config(provider_options=[]), tmp_path)
    assert has_own_batches(config(provider_options=[{"cuda": {}}]), tmp_path)
    assert has_own_batches({**config(), "engine": {}}, tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.decoder: is not an object"):
        has_own_batches({"model": {"decoder": 1}}, tmp_path)
