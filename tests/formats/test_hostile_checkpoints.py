"""Hostile model files that need no server: a typed error names file and field."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from galley.engine.read_model import read_model
from galley.errors import CheckpointError, ModelError
from galley.settings.engine import EngineSettings
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from tests.conftest import CheckpointMaker
from tests.formats.damage import (
    CONFIG,
    INDEX,
    NORM,
    WEIGHTS,
    add_token,
    changed,
    changed_header,
    rename_tensor,
    write_number,
)


@pytest.fixture
def model(checkpoint: CheckpointMaker, tmp_path: Path) -> Path:
    """A separate checkpoint."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "model"))


def refusal(folder: Path) -> str:
    """Return the one-line error from building an engine and a tokenizer from the folder."""
    with pytest.raises(ModelError) as caught:
        read_all(folder)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 2000
    return message


def read_all(folder: Path) -> None:
    """Read the folder as a server does, except for the values of the weights."""
    model = read_model(EngineSettings(), folder)
    tokenizer = Tokenizer.load(folder)
    tokenizer.check_vocabulary(model.program.vocab_size, folder)
    ChatTemplate.load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickles_are_not_read(model: Path, name: str) -> None:
    (model / WEIGHTS).rename(model / name)
    assert "Galley reads safetensors, GGUF" in refusal(model)


def test_code_is_not_run(model: Path) -> None:
    with changed(model / CONFIG) as config:
        config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (model / "evil.py").write_text("raise SystemExit('ran')")
    assert "auto_map requires code" in refusal(model)


def _overlap(header: dict[str, Any]) -> None:
    begin, end = header[NORM]["data_offsets"]
    header[NORM]["data_offsets"] = [begin - 4, end - 4]


def _set(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[NORM].update(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_overlap, "expected"),
        (_set(data_offsets=[2**64, 2**64 + 192]), "expected"),
        (_set(data_offsets=[10**30, 10**30 + 192]), "expected"),
        (_set(data_offsets=[0, 1, 2]), "bad data_offsets"),
        (_set(dtype="F8_E9M9"), "dtype 'F8_E9M9' is not supported"),
        (_set(dtype=["F32"]), "dtype"),
        (_set(shape=[0, 10**30]), "bad shape"),
        (_set(shape=[10**30, 0]), "bad shape"),
        (_set(shape=[2**40] * 400), "bad shape"),
        (_set(shape=[True]), "bad shape"),
        (_set(shape="48"), "bad shape"),
    ],
)
def test_false_safetensors_headers_are_refused(
    model: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    with changed_header(model) as header:
        change(header)
    message = refusal(model)
    assert said in message
    assert WEIGHTS in message


def test_a_header_over_100_mb_is_refused(model: Path) -> None:
    with (model / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", 101 * 2**20))
        file.truncate(200 * 2**20)
    assert "exceeds the format's limit" in refusal(model)


def test_truncated_and_trailing_bytes_are_refused(model: Path) -> None:
    data = (model / WEIGHTS).read_bytes()
    for content in (data[:-4], data + b"1234", data[:5], b"", data[: len(data) // 3]):
        (model / WEIGHTS).write_bytes(content)
        assert WEIGHTS in refusal(model)


def test_a_tensor_named_twice_is_refused(model: Path) -> None:
    data = (model / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    text = data[8 : 8 + length].rstrip().replace(b"{", b'{"a": 1, "a": 2, ', 1)
    (model / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert "'a' occurs twice" in refusal(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    (model / WEIGHTS).unlink()
    (model / INDEX).write_text(json.dumps({"weight_map": {NORM: "gone.safetensors"}}))
    assert "gone.safetensors: cannot be read: No such file" in refusal(model)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": 52}, "model.embed_tokens.weight: has shape [320, 48]"),
        ({"num_key_value_heads": 4}, "k_proj.weight: has shape"),
        ({"vocab_size": 319}, "model.embed_tokens.weight: has shape [320, 48]"),
        ({"attention_bias": True}, "q_proj.bias: tensor is missing"),
    ],
)
def test_config_and_tensors_that_disagree_are_refused(
    model: Path, fields: dict[str, Any], said: str
) -> None:
    with changed(model / CONFIG) as config:
        config.update(fields)
    assert said in refusal(model)


def test_a_tokenizer_larger_than_the_embedding_is_refused(model: Path) -> None:
    add_token(model, 320)
    message = refusal(model)
    assert "tokenizer.json: token '<|evil|>': has id 320" in message
    assert "vocab_size in config.json is 320" in message


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/passwd",
        "a/../model.safetensors",
        "x\0.safetensors",
        "\ud800.safetensors",
        "a" * 300 + ".safetensors",
        "..",
        "",
    ],
)
def test_shard_names_that_leave_the_folder_are_refused(model: Path, shard: str) -> None:
    (model / WEIGHTS).rename(model.parent / WEIGHTS)
    (model / INDEX).write_text(json.dumps({"weight_map": {NORM: shard}}))
    refusal(model)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, "tokenizer.json", "generation_config.json"])
def test_a_symlink_out_of_the_folder_is_refused(model: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (model / name).rename(outside)
    (model / name).symlink_to(outside)
    assert f"{name}: is a symbolic link to {outside}" in refusal(model)


def test_links_of_the_hub_library_are_followed(model: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots"
    blobs.mkdir(parents=True)
    snapshot.mkdir()
    shutil.move(model, snapshot / "0123")
    for path in [*(snapshot / "0123").iterdir()]:
        path.rename(blobs / path.name)
        path.symlink_to(Path("../../blobs") / path.name)
    assert read_model(EngineSettings(), snapshot / "0123").program.vocab_size == 320


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: is 1000000, expected at most 21"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: is 1000000000"),
        ({"num_hidden_layers": 10**18}, "num_hidden_layers: is 1000000000000000000"),
        ({"num_hidden_layers": 20}, "model.layers.2.input_layernorm.weight: tensor is missing"),
        ({"head_dim": 10**9}, "head_dim: is 1000000000"),
        ({"hidden_size": 10**9}, "hidden_size: is 1000000000"),
        ({"num_attention_heads": 10**12}, "num_attention_heads"),
        ({"vocab_size": 10**9}, "vocab_size"),
        ({"max_position_embeddings": 10**20}, "max_position_embeddings"),
    ],
)
def test_sizes_are_bounded_by_the_tensors(model: Path, fields: dict[str, Any], said: str) -> None:
    with changed(model / CONFIG) as config:
        config.update(fields)
    message = refusal(model)
    assert said in message
    assert "config.json" in message or "tensor is missing" in message


def test_fewer_layers_than_the_checkpoint_has_are_refused(model: Path) -> None:
    with changed(model / CONFIG) as config:
        config["num_hidden_layers"] = 1
    message = refusal(model)
    assert "config.json: num_hidden_layers: is 1, but" in message
    assert "model.layers.1.input_layernorm.weight" in message


@pytest.mark.parametrize("family", [{}, {"content": "llama"}, [[0, 0]], 5, "", None])
@pytest.mark.parametrize("more", [{}, {"auto_map": {}}])
def test_a_model_type_that_is_not_a_string_is_refused(
    model: Path, family: Any, more: dict[str, Any]
) -> None:
    with changed(model / CONFIG) as config:
        config.update(more, model_type=family)
    message = refusal(model)
    assert "config.json" in message
    assert "model_type" in message or "auto_map" in message


@pytest.mark.parametrize(
    "fields", [{"tie_word_embeddings": True, "model_type": "llama"}, {"model_type": "llama"}]
)
def test_obsolete_fields_are_harmless(model: Path, fields: dict[str, Any]) -> None:
    with changed(model / CONFIG) as config:
        config.update(fields)
    with changed_header(model) as header:
        end = max(e["data_offsets"][1] for n, e in header.items() if n != "__metadata__")
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
        header["model.layers.0.self_attn.rotary_emb.inv_freq"] = empty
        header["mtp.fc.weight"] = empty
    read_model(EngineSettings(), model)


def test_layers_of_multi_token_prediction_are_skipped(model: Path) -> None:
    with changed(model / CONFIG) as config:
        config |= {"num_hidden_layers": 1, "num_nextn_predict_layers": 1}
    assert len(read_model(EngineSettings(), model).program.kv) == 1


def test_other_surplus_tensors_are_named(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("qwen3"), tmp_path / "m"))
    with changed(folder / CONFIG) as config:
        config["model_type"] = "llama"
    message = refusal(folder)
    assert "does not use model.layers.0.self_attn.k_norm.weight" in message
    assert "model_type llama" in message


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (CONFIG, "num_hidden_layers"),
        (CONFIG, "rope_theta"),
        (CONFIG, "max_position_embeddings"),
        ("generation_config.json", "eos_token_id"),
        ("generation_config.json", "top_k"),
    ],
)
def test_a_number_of_5000_digits_is_refused(model: Path, name: str, field: str) -> None:
    write_number(model / name, field)
    message = refusal(model)
    assert f"{name}: {field}: is a number of 5000 digits" in message


def test_a_number_of_5000_digits_in_a_header_is_refused(model: Path) -> None:
    with changed_header(model) as header:
        header[NORM]["shape"] = ["PLACE"]
    data = (model / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    text = data[8 : 8 + length].replace(b'"PLACE"', b"9" * 5000)
    (model / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert f"{NORM}: bad shape [a number of 5000 digits]" in refusal(model)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "yarn", "factor": 1e20}, "rope_parameters.factor"),
        (
            {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 10**20},
            "original_max_position_embeddings",
        ),
        ({"rope_type": "yarn", "factor": 4, "rope_theta": 1}, "do not give finite frequencies"),
        ({"rope_type": "default", "rope_theta": 1e-320}, "do not give finite frequencies"),
    ],
)
def test_rope_settings_without_finite_positions_are_refused(
    model: Path, rope: dict[str, Any], said: str
) -> None:
    with changed(model / CONFIG) as config:
        config["rope_parameters"] = rope
    message = refusal(model)
    assert said in message
    assert "config.json" in message


@pytest.mark.parametrize(
    "name",
    [WEIGHTS, INDEX, CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json"],
)
def test_a_fifo_in_place_of_a_file_is_refused(model: Path, name: str) -> None:
    if name == INDEX:
        (model / WEIGHTS).unlink()
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    assert f"{name}: is not a regular file" in refusal(model)


def test_a_name_that_is_not_a_string_is_refused(model: Path) -> None:
    rename_tensor(model, NORM, "\ud800\n\x1b[2J" * 300)
    refusal(model)


def test_a_tokenizer_that_makes_the_library_panic_is_refused(model: Path) -> None:
    """A prefix that is longer than the pieces after it: its panic is not an Exception."""
    path = model / "tokenizer.json"
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "continuing_subword_prefix": "longer than a piece",
            "vocab": {"a": 0, "b": 1, "ab": 2},
            "merges": [["a", "b"]],
        },
    }
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        Tokenizer.load(model)
