"""Checkpoints written by llm-compressor and GPTQModel, read by Galley and by others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from galley.engine.read_model import read_model
from galley.errors import CheckpointError
from galley.formats.quantization import has_8_bit_kv
from galley.formats.reader import open_checkpoint
from galley.settings.engine import EngineSettings
from tests.formats.values import Floats, galleys_logits, relative, values_of

FOLDER = Path(__file__).parent / "peer_files"
IDS = [2, 5, 14, 30, 7, 7, 19, 25, 3, 31, 12, 8, 2, 16]


def without_inputs(folder: Path, out: Path, tensors: dict[str, Any]) -> None:
    """Write the checkpoint of ``tensors``, with unquantized inputs, keys and values."""
    out.mkdir()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = None
    for group in config["quantization_config"].get("config_groups", {}).values():
        group["input_activations"] = None
    if not any(name.endswith(("_scale", "_packed")) for name in tensors):
        del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def transformers_logits(folder: Path) -> Floats:
    """Return the logits in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        model(torch.tensor([IDS]))  # unpacks
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize("name", ["w8a8-static", "mixed", "fp8-kv8"])
def test_weights_of_llm_compressor_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    tensors = load_file(FOLDER / name / "model.safetensors")
    left_out = ("input_scale", "input_zero_point", ".k_scale", ".v_scale")
    kept = {key: value for key, value in tensors.items() if not key.endswith(left_out)}
    without_inputs(FOLDER / name, tmp_path / "weights", kept)
    expected = transformers_logits(tmp_path / "weights")
    got = galleys_logits(FOLDER / name, IDS)
    assert relative(got, expected) < 1e-4
    assert np.array_equal(got.argmax(1), expected.argmax(1))


def test_inputs_are_rounded_by_the_static_scales_as_in_transformers() -> None:
    folder = FOLDER / "w8a8-static-symmetric"
    expected = transformers_logits(folder)
    missed = {
        activations: relative(galleys_logits(folder, IDS, activations=activations), expected)
        for activations in ("auto", "int8", "float32")
    }
    assert missed["auto"] < 0.1 * min(missed["int8"], missed["float32"])
    steps = open_checkpoint(folder).weights().input_step
    scales = load_file(folder / "model.safetensors")
    found = {k.removesuffix(".input_scale"): v for k, v in scales.items() if "input_scale" in k}
    assert len(found) == 7
    for module, scale in found.items():
        assert steps(f"{module}.weight") == float(scale)
    notes = open_checkpoint(FOLDER / "w8a8-static").weights().notes
    assert any("are not used, as they have zero points" in note for note in notes)


def test_a_static_scale_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    folder = FOLDER / "w8a8-static-symmetric"
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("input_scale"))
    tensors[name] = -tensors[name]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="expected one positive scale") as refused:
        open_checkpoint(tmp_path).weights()
    assert name in str(refused.value)


def test_keys_and_values_have_8_bits_if_the_checkpoint_was_made_for_them() -> None:
    def kv_dtype(name: str, **settings: Any) -> str:
        return read_model(EngineSettings(**settings), FOLDER / name).options.kv_dtype

    assert kv_dtype("fp8-kv8") == kv_dtype("fp8-kv8", weight_dtype="int4") == "int8"
    assert kv_dtype("fp8-kv8", kv_dtype="bfloat16") == "bfloat16"
    assert kv_dtype("fp8-kv8", dtype="float32") == "float32"
    assert kv_dtype("w8a8-static") != "int8"


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ({"kv_cache_scheme": "static"}, True),
        ({"kv_cache_scheme": {"num_bits": 4}}, False),
        ({"kv_cache_scheme": None}, False),
        ({"quant_method": "fp8"}, False),
    ],
)
def test_a_checkpoints_type_of_keys_and_values_is_read(
    tmp_path: Path, said: dict[str, Any], has: bool
) -> None:
    assert has_8_bit_kv(tmp_path, {"quantization_config": said}) is has


@pytest.mark.parametrize("name", ["gptq-w4a16", "awq-w4a16"])
def test_zero_points_of_llm_compressor(tmp_path: Path, name: str) -> None:
    """transformers refuses them (it expects zero points that are not packed), so the library unpacks."""
    tensors = load_file(FOLDER / name / "model.safetensors")
    for key in [key for key in tensors if key.endswith("_packed")]:
        module = key.removesuffix("weight_packed")
        rows, columns = map(int, tensors.pop(f"{module}weight_shape"))
        scales = tensors.pop(f"{module}weight_scale").float()
        groups = scales.shape[1]
        q = unpack_from_int32(tensors.pop(key), 4, torch.Size([rows, columns])).float()
        packed = tensors.pop(f"{module}weight_zero_point")
        zeros = unpack_from_int32(packed, 4, torch.Size([rows, groups]), packed_dim=0).float()
        grouped = q.view(rows, groups, -1) - zeros[:, :, None]
        tensors[f"{module}weight"] = (grouped * scales[:, :, None]).reshape(rows, columns)
    without_inputs(FOLDER / name, tmp_path / "dense", tensors)
    expected = transformers_logits(tmp_path / "dense")
    got = galleys_logits(FOLDER / name, IDS)
    assert relative(got, expected) < 1e-4
    assert np.array_equal(got.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("name", ["gptqmodel-v1", "gptqmodel-v1-order", "gptqmodel-v2"])
def test_values_of_gptqmodel(tmp_path: Path, name: str) -> None:
    """The tool multiplies with float16; ``exact`` keeps every digit where desc_act rules out integers."""
    with np.load(FOLDER / name / "values.npz") as arrays:
        stored = {key: arrays[key] for key in arrays.files}
    weights = open_checkpoint(FOLDER / name, exact=True).weights()
    assert len(stored) == 7
    for key, values in stored.items():
        assert np.array_equal(values_of(weights[key]).astype(np.float16), values), key
    tensors = load_file(FOLDER / name / "model.safetensors")
    kept = {key: value for key, value in tensors.items() if key.endswith(".weight")}
    dense = {key: torch.from_numpy(values).float().contiguous() for key, values in stored.items()}
    without_inputs(FOLDER / name, tmp_path / "dense", kept | dense)
    expected = transformers_logits(tmp_path / "dense")
    got = galleys_logits(FOLDER / name, IDS)
    assert relative(got, expected) < 1e-3
    assert np.array_equal(got.argmax(1), expected.argmax(1))


def test_files_of_gptqmodel_have_orders_and_zero_points() -> None:
    """Otherwise nothing above would distinguish them."""
    tensors = {
        name: load_file(FOLDER / f"gptqmodel-{name}" / "model.safetensors")
        for name in ("v1", "v1-order", "v2")
    }
    module = "model.layers.0.self_attn.q_proj"
    orders = {name: t[f"{module}.g_idx"].diff() for name, t in tensors.items()}
    assert [name for name, order in orders.items() if (order < 0).any()] == ["v1-order"]
    zeros = {name: t[f"{module}.qzeros"].unique() for name, t in tensors.items()}
    assert zeros["v1"].tolist() == [0x77777777]
    assert len(zeros["v1-order"]) > 1
    assert len(zeros["v2"]) > 1
