"""compressed-tensors checkpoints: the library's own files, and what galley quantize writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from galley.calibration.held_out import held_apart
from galley.calibration.matrices import linear_weights
from galley.calibration.quantize import Plan, Quantizer
from galley.engine.read_model import read_model
from galley.errors import ModelError
from galley.formats.reader import open_checkpoint
from galley.formats.values import to_float32
from galley.formats.weights import IntWeight
from galley.ops.choice import choose_executor
from galley.quant.grid import Scheme, nearest
from galley.settings.engine import EngineSettings
from tests.checkpoints import make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.formats.compressed_files import INPUTS, args, groups_of, write_compressed
from tests.formats.values import galleys_logits, relative, values_of

IDS = [5, 40, 41, 300, 7, 7, 19, 250, 3, 60, 61, 62]
PROJ = "model.layers.0.self_attn.q_proj"


def quantized(folder: Path, out: Path, *schemes: Scheme) -> dict[str, IntWeight]:
    """Write a checkpoint whose matrices alternate between the schemes; return its expected values."""
    model = read_model(EngineSettings(dtype="float32", kv_dtype="float32", threads=1), folder)
    names = linear_weights(model.program)
    plan = {name: schemes[i % len(schemes)] for i, name in enumerate(names)}
    windows = [random_ids(seed, 32) for seed in range(9)]
    factory = choose_executor("auto", "cpu")[1]
    Quantizer(model, factory, out, Plan("rtn", plan), held_apart(windows)).run()
    return {
        name: nearest(name, to_float32(model.weights[name]), scheme)  # type: ignore[arg-type]
        for name, scheme in plan.items()
    }


@pytest.mark.parametrize(
    "schemes",
    [
        (Scheme(4, 16),),
        (Scheme(4, 16, symmetric=False),),
        (Scheme(4),),
        (Scheme(8),),
        (Scheme(8, 32), Scheme(4, 16)),
    ],
    ids=str,
)
def test_what_galley_quantize_writes_is_read_exactly(
    checkpoint: CheckpointMaker, tmp_path: Path, schemes: tuple[Scheme, ...]
) -> None:
    wanted = quantized(checkpoint("llama-mha-tied"), tmp_path / "out", *schemes)
    weights = open_checkpoint(tmp_path / "out").weights()
    for name, weight in wanted.items():
        got = weights[name]
        assert isinstance(got, IntWeight)
        assert weights.info(name).kind == got.kind
        assert got.kind.name == weight.kind.name
        assert np.array_equal(got.q, weight.q), name
        assert np.array_equal(got.scales, weight.scales)
        if weight.zeros is not None:
            assert got.zeros is not None
            assert np.array_equal(got.zeros, weight.zeros)
    if all(scheme.symmetric for scheme in schemes):
        expected = transformers_logits(tmp_path / "out")
        got_logits = galleys_logits(tmp_path / "out", IDS)
        assert relative(got_logits, expected) < 1e-3
        assert np.array_equal(got_logits.argmax(1), expected.argmax(1))


def transformers_logits(folder: Path, **how: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def test_zero_points_are_read_by_transformers_as_the_docs_say(tmp_path: Path) -> None:
    """They are not read as integers, but as bfloat16 floats."""
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    plain = make_checkpoint(tmp_path / "plain", **shape)
    quantized(plain, tmp_path / "out", Scheme(4, 32, symmetric=False))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers_logits(tmp_path / "out")
    how = CompressedTensorsConfig(dequantize=True)
    expected = transformers_logits(tmp_path / "out", quantization_config=how)
    assert relative(galleys_logits(tmp_path / "out", IDS), expected) < 3e-2


FLOATS = {"type": "float", "symmetric": True}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        pytest.param(groups_of(args(8), input_activations=INPUTS["dynamic"]), "int8", id="dynamic"),
        pytest.param(groups_of(args(8), input_activations=INPUTS["static"]), "int8", id="static"),
        pytest.param(
            groups_of(args(8, strategy="tensor"), input_activations=INPUTS["static"]),
            "int8",
            id="tensor",
        ),
        pytest.param(groups_of(args(8, **FLOATS)), "float32", id="fp8-channel"),
        pytest.param(groups_of(args(8, **FLOATS, strategy="tensor")), "float32", id="fp8-tensor"),
    ],
)
def test_the_librarys_own_files(tmp_path: Path, config: dict[str, Any], kind: str) -> None:
    truth = write_compressed(tmp_path, config)
    weights = open_checkpoint(tmp_path / "made").weights()
    quantized = [name for name in truth if name.endswith("_proj.weight")]
    assert len(quantized) == 14
    for name in quantized:
        weight = weights[name]
        assert weight.kind.name == kind
        wanted = truth[name].numpy()
        assert np.abs(values_of(weight) - wanted).max() <= 1e-6 * np.abs(wanted).max(), name
    assert weights["lm_head.weight"].kind.is_dense


def _change(tensors: dict[str, Any], **changes: Any) -> None:
    for suffix, value in changes.items():
        name = f"{PROJ}.{suffix}"
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value


@pytest.mark.parametrize(
    ("changes", "config", "said"),
    [
        ({"weight_scale": None}, {}, f"{PROJ}.weight_scale"),
        ({"weight_shape": None}, {}, f"{PROJ}.weight_shape"),
        ({"weight_shape": torch.tensor([48, 7])}, {}, f"{PROJ}.weight_packed"),
        ({"weight_shape": torch.tensor([-1, 48])}, {}, f"{PROJ}.weight_shape"),
        ({"weight_shape": torch.tensor([2**40, 2**40])}, {}, f"{PROJ}.weight_shape"),
        ({"weight_packed": torch.zeros(48, 6)}, {}, f"{PROJ}.weight_packed"),
        ({"weight_scale": torch.ones(48, 2)}, {}, f"{PROJ}.weight_scale"),
        ({"weight_scale": torch.full((48, 3), torch.inf)}, {}, f"{PROJ}.weight_scale"),
        ({}, {"format": "marlin-24"}, "format"),
        ({}, {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config.format"),
        ({}, {"transform_config": {"x": 1}}, "transform_config"),
        ({}, {"config_groups": {}}, "which does not match num_bits of the config"),
        ({}, {"config_groups": {"a": {"weights": {"num_bits": 9}}}}, "num_bits"),
        ({}, {"config_groups": {"a": {"weights": {"num_bits": "4"}}}}, "num_bits"),
        ({}, {"config_groups": [1]}, "config_groups"),
    ],
)
def test_damage_is_named(
    checkpoint: CheckpointMaker,
    tmp_path: Path,
    changes: dict[str, Any],
    config: dict[str, Any],
    said: str,
) -> None:
    out = tmp_path / "out"
    quantized(checkpoint("llama-mha-tied"), out, Scheme(4, 16))
    files = {path: load_file(path) for path in out.glob("*.safetensors")}
    [file] = [path for path, held in files.items() if f"{PROJ}.weight_packed" in held]
    _change(files[file], **changes)
    save_file(files[file], file)
    whole = json.loads((out / "config.json").read_text())
    whole["quantization_config"] |= config
    (out / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ModelError) as refused:
        read_all(out)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 600


def read_all(folder: Path) -> None:
    weights = open_checkpoint(folder).weights()
    for name in weights:
        weights[name]
