"""Inconsistent checkpoints are refused, with file and field named; valid ones are read exactly."""

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from galley.errors import CheckpointError, ModelError, ModelNotFound, UnsupportedModel
from galley.formats.checkpoint import Checkpoint
from galley.formats.safetensors import read_safetensors
from galley.models.registry import FAMILIES, build_program
from tests.checkpoints import SHAPE, VARIANTS
from tests.conftest import CheckpointMaker
from tests.thorough import examples

CONFIG = {**SHAPE, "model_type": "llama"}


def write_raw(path: Path, header: Any, data: bytes, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_the_librarys_files_are_read_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.randn(2, 2, 2).half(),
        "empty": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    read = read_safetensors(tmp_path / "x.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].shape == tuple(tensor.shape)
        raw = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
        assert np.array_equal(read[name].data, raw)
    assert [read[n].dtype for n in "abc"] == ["F32", "BF16", "F16"]


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ({"a": entry(0, 8, [2])}, b"1234", "cover 8 of 4"),
        ({"a": entry(0, 4, [1])}, b"12345678", "cover 4 of 8"),
        ({"a": entry(4, 8, [1])}, b"12345678", "a: starts at 4"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 8, [1])}, b"12345678", "b: starts at 4"),
        ({"a": entry(0, 8, [3])}, b"12345678", "needs 12 bytes"),
        ({"a": entry(0, 8, [2**62, 2**62])}, b"12345678", "bad shape"),
        ({"a": entry(0, 8, [-2])}, b"12345678", "bad shape"),
        ({"a": entry(0, 8, [1], "I63")}, b"12345678", "dtype 'I63'"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"12345678", "bad data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, True]}}, b"12345678", "bad data"),
        ({"a": 5}, b"12345678", "bad data_offsets"),
        ([1, 2], b"", "not a JSON object"),
        (b"{broken", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    path = write_raw(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    assert said in str(caught.value)
    assert "bad.safetensors" in str(caught.value)


def test_integers_that_no_quantization_explains_are_no_weights(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "ints.safetensors", {"a": entry(0, 8, [1], "I64")}, b"12345678")
    tensor = read_safetensors(path)["a"]
    with pytest.raises(CheckpointError, match="dtype 'I64' is not supported"):
        tensor.dense()


def test_header_lengths_that_lie(tmp_path: Path) -> None:
    for length in (2**63, 2**40, 3):
        path = write_raw(tmp_path / "x.safetensors", {}, b"", length=length)
        with pytest.raises(CheckpointError):
            read_safetensors(path)
    (tmp_path / "x.safetensors").write_bytes(b"123")
    with pytest.raises(CheckpointError):
        read_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_safetensors(tmp_path / "absent.safetensors")


@settings(max_examples=examples(200))
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_typed_error(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(struct.pack("<Q", max(0, len(content) - 8)) + content)
    with contextlib.suppress(CheckpointError):
        read_safetensors(path)


def copy(folder: Path, target: Path, **config: Any) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    changed = {**json.loads((folder / "config.json").read_text()), **config}
    (target / "config.json").write_text(json.dumps(changed))
    return target


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 52}, "model.embed_tokens.weight: has shape [320, 48]"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight: tensor is missing"),
        ({"attention_bias": True}, "q_proj.bias: tensor is missing"),
        ({"vocab_size": 10}, "config.json implies [10, 48]"),
    ],
)
def test_config_and_tensors_that_disagree(
    changes: dict[str, Any], said: str, checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    opened = Checkpoint.open(copy(checkpoint("llama"), tmp_path / "m", **changes))
    with pytest.raises(CheckpointError) as caught:
        build_program(opened.config).take_weights(opened.weights(), folder="m")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "48"}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "rope_parameters.rope_type 'ntk'"),
        ({"rope_scaling": {"type": "ntk", "factor": 2}}, "rope_scaling.type 'ntk'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": 50}, "hidden_size"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_program({**CONFIG, **changes})
    assert said in str(caught.value)
    assert "config.json" in str(caught.value)


def test_unknown_families_are_refused_with_the_list() -> None:
    for kind in ("gpt2", None, 5):
        with pytest.raises(UnsupportedModel) as caught:
            build_program({**CONFIG, "model_type": kind})
        assert all(family in str(caught.value) for family in FAMILIES)


def test_old_and_new_rope_spellings_are_the_same_program() -> None:
    new = VARIANTS["llama-llama3"]["rope_parameters"]
    old = {k: v for k, v in new.items() if k not in ("rope_theta", "rope_type")}
    assert build_program({**CONFIG, "rope_parameters": new}) == build_program(
        {**CONFIG, "rope_theta": new["rope_theta"], "rope_scaling": {**old, "type": "llama3"}}
    )


def test_generation_defaults_are_honored(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder = copy(checkpoint("llama"), tmp_path / "m")
    file = folder / "generation_config.json"
    file.write_text(
        json.dumps({"eos_token_id": [3, 4], "temperature": 0.6, "top_k": 20, "do_sample": True})
    )
    opened = Checkpoint.open(folder)
    assert opened.eos_token_ids == (3, 4)
    assert (opened.defaults.temperature, opened.defaults.top_k) == (0.6, 20)
    file.write_text(json.dumps({"do_sample": False}))
    greedy = Checkpoint.open(folder)
    assert greedy.defaults.temperature == 0.0
    assert greedy.eos_token_ids == (0,)
    for wrong in ({"temperature": -1}, {"top_p": "x"}, {"eos_token_id": "x"}, [1]):
        file.write_text(json.dumps(wrong))
        with pytest.raises(CheckpointError, match=r"generation_config\.json"):
            Checkpoint.open(folder)


def test_folders_that_cannot_be_served(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        Checkpoint.open(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.open(tmp_path)
    remote = copy(checkpoint("llama"), tmp_path / "remote", auto_map={"AutoModel": "x.Y"})
    with pytest.raises(UnsupportedModel, match="auto_map"):
        Checkpoint.open(remote)
    published = copy(checkpoint("phi3"), tmp_path / "own", auto_map={"AutoModel": "x.Y"})
    assert Checkpoint.open(published).config["model_type"] == "phi3"
    pickled = copy(checkpoint("llama"), tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="Galley reads safetensors, GGUF"):
        Checkpoint.open(pickled).weights()


@pytest.mark.parametrize(
    "shard", ["../model.safetensors", "/etc/passwd", "gone.safetensors", "x.bin"]
)
def test_shard_names_stay_in_the_folder(
    shard: str, checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = copy(checkpoint("llama"), tmp_path / "m")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError):
        Checkpoint.open(folder).weights()
