"""GPTQ, AWQ, FP8 and MXFP4 checkpoints: exact integers where a kind exists, and the exact values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from galley.engine.read_model import read_model
from galley.errors import CheckpointError, ModelError, UnsupportedModel
from galley.formats.reader import open_checkpoint
from galley.formats.weights import DenseWeight, IntWeight
from galley.settings.engine import EngineSettings
from tests.checkpoints import make_checkpoint
from tests.formats.packed_files import write_awq, write_fp8, write_gptq, write_mxfp4
from tests.formats.values import galleys_logits, relative, values_of

SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plain"), "llama", **SHAPE)


def expected_logits(plain: Path, truth: dict[str, Any], ids: list[int]) -> Any:
    """Return transformers' logits, with the values of the packed file."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    state = {name: torch.tensor(values) for name, values in truth.items()}
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


Writer = Callable[[Path, Path], dict[str, Any]]

GPTQ: list[Any] = [
    pytest.param(
        lambda p, f, b=bits, g=group, k=options: write_gptq(p, f, b, g, **k),
        f"int{8 if bits == 8 else 4}",
        id=f"gptq-{bits}-{group}-{'-'.join(map(str, options.values()))}",
    )
    for bits in (2, 3, 4, 8)
    for group, options in (
        (32, {"version": "gptq"}),
        (32, {"version": "gptq_v2"}),
        (-1, {"version": "gptq", "symmetric": True}),
    )
]


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        *GPTQ,
        pytest.param(
            lambda p, f: write_gptq(p, f, 4, 32, act_order=True), "float32", id="act-order"
        ),
        pytest.param(lambda p, f: write_awq(p, f, 32), "int4", id="awq-32"),
        pytest.param(lambda p, f: write_awq(p, f, -1), "int4", id="awq-all"),
        pytest.param(lambda p, f: write_fp8(p, f, (128, 128)), "float32", id="fp8-blocks"),
        pytest.param(lambda p, f: write_fp8(p, f, (32, 64)), "float32", id="fp8-small-blocks"),
        pytest.param(lambda p, f: write_fp8(p, f, None), "float32", id="fp8-tensor"),
        pytest.param(write_mxfp4, "bf16", id="mxfp4"),
    ],
)
def test_values_and_logits_are_what_the_file_means(
    write: Writer, kind: str, plain: Path, tmp_path: Path
) -> None:
    truth = write(plain, tmp_path / "made")
    weights = open_checkpoint(tmp_path / "made").weights()
    assert len(truth) == 14
    for name, wanted in truth.items():
        weight = weights[name]
        assert weights.info(name).kind == weight.kind
        assert weight.kind.name == kind, name
        got = values_of(weight)
        assert np.abs(got - wanted).max() <= 1e-6 * np.abs(wanted).max(), name
        if kind.startswith("int"):
            assert isinstance(weight, IntWeight)
    ids = [5, 40, 41, 300, 7, 7, 19, 250, 3, 60, 61, 62]
    assert (
        relative(galleys_logits(tmp_path / "made", ids), expected_logits(plain, truth, ids)) < 1e-3
    )


def test_conversions_are_logged_with_their_cost(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_gptq(plain, tmp_path / "made", 4, 32, act_order=True)
    with caplog.at_level("INFO", logger="galley.weights"):
        read_model(EngineSettings(), tmp_path / "made")
    assert "14 tensors are int4 in the order of their activations" in caplog.text
    assert "instead of" in caplog.text


def test_scales_of_keys_and_values_are_known(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_fp8(plain, tmp_path / "made", None)
    file = tmp_path / "made/model.safetensors"
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    scales = {
        f"model.layers.0.self_attn.{name}_scale": torch.tensor([0.5])
        for name in ("k", "v", "q_proj.input")
    }
    save(load(file) | scales, file)
    with caplog.at_level("INFO", logger="galley.weights"):
        read_model(EngineSettings(), tmp_path / "made")
    assert "2 scales of keys and values" in caplog.text
    assert "static scales of inputs" in caplog.text


Change = Callable[[dict[str, Any], dict[str, Any]], object]
PROJ = "model.layers.0.self_attn.q_proj"


def _without(name: str) -> Change:
    return lambda tensors, config: tensors.pop(f"{PROJ}.{name}")


def _set(name: str, value: Any) -> Change:
    return lambda tensors, config: tensors.update({f"{PROJ}.{name}": value})


def _says(**fields: Any) -> Change:
    return lambda tensors, config: config.update(fields)


def read_all(folder: Path) -> None:
    weights = open_checkpoint(folder).weights()
    for name in weights:
        weights[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("scales"), f"{PROJ}.scales"),
        (_without("qzeros"), f"{PROJ}.qzeros"),
        (_set("qweight", np.zeros((11, 192), np.int32)), f"{PROJ}.qweight"),
        (_set("qweight", np.zeros((0, 192), np.int32)), f"{PROJ}.qweight"),
        (_set("qweight", np.zeros((12, 192), np.float32)), f"{PROJ}.qweight"),
        (_set("scales", np.ones((2, 192), np.float16)), f"{PROJ}.scales"),
        (_set("scales", np.ones((3, 192), np.int32)), f"{PROJ}.scales"),
        (_set("scales", np.full((3, 192), np.nan, np.float16)), f"{PROJ}.scales"),
        (_set("scales", np.zeros((3, 192), np.float16)), f"{PROJ}.scales"),
        (_set("qzeros", np.zeros((3, 5), np.int32)), f"{PROJ}.qzeros"),
        (_set("g_idx", np.full(96, 7, np.int32)), f"{PROJ}.g_idx"),
        (_set("g_idx", np.full(96, -1, np.int32)), f"{PROJ}.g_idx"),
        (_says(bits=5), "bits"),
        (_says(bits="4"), "bits"),
        (_says(bits=None), "bits"),
        (_says(group_size=7), "which does not match group_size [7] of the config"),
        (_says(group_size=-2), "group_size"),
        (_says(checkpoint_format="marlin"), "checkpoint_format"),
        (_says(is_marlin_format=True), "is_marlin_format"),
        (_says(quant_method="quip"), "quant_method"),
        (_says(quant_method=None), "quant_method"),
    ],
)
def test_damage_is_named(plain: Path, tmp_path: Path, change: Change, said: str) -> None:
    folder = tmp_path / "made"
    write_gptq(plain, folder, 4, 32)
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    change(tensors, config["quantization_config"])
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as refused:
        read_all(folder)
    assert isinstance(refused.value, CheckpointError | UnsupportedModel)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 600


def test_the_cache_distinguishes_quantizations(plain: Path, tmp_path: Path) -> None:
    """The same integers have other values under another config."""
    write_gptq(plain, tmp_path / "made", 4, 32)
    before = open_checkpoint(tmp_path / "made")
    path = tmp_path / "made/config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    path.write_text(json.dumps(config))
    after = open_checkpoint(tmp_path / "made")
    assert before.content_hash() != after.content_hash()
    assert before.state() != after.state()
    dense = DenseWeight
    assert not isinstance(after.weights()[f"{PROJ}.weight"], dense)
