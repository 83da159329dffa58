"""Redundant or unusual rope settings in config.json are resolved as in transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from galley.models.registry import build_program
from tests.checkpoints import SHAPE

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 3.0}
NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 7e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
}
SAID: dict[str, dict[str, Any]] = {
    "both": {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 777.0, **LINEAR}},
    "both-and-theta": {
        "rope_scaling": YARN,
        "rope_theta": 5000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
    },
    "old-name": {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
    },
    "null": {"rope_scaling": None, "rope_parameters": {"rope_theta": 777.0, **LINEAR}},
    "empty": {"rope_scaling": {}, "rope_parameters": {"rope_theta": 777.0, **YARN}},
    "theta-inside": {"rope_scaling": {"rope_theta": 900.0, **LINEAR}, "rope_theta": 5000.0},
    "no-multiplier": {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0}},
    "no-multipliers": {"rope_scaling": {**YARN, "mscale": 0.0, "mscale_all_dim": 0.0}},
    "multiplied": {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 5000.0},
    "trained-outside": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 100},
}
KINDS = ["sliding_attention", "full_attention"]
LAYERS = {"layer_types": KINDS, "sliding_window": 8}


def rotated(config: dict[str, Any]) -> list[tuple[Any, float]]:
    """Return frequencies and scale of each layer's queries."""
    ops = [op for op in build_program(config).ops if op.name == "rope"]
    return [(np.array(op.attrs["inv_freq"]), op.attrs["scale"]) for op in ops[::2]]


def truth(config: dict[str, Any], folder: Path) -> Any:
    """Return transformers' rotation of the model that the file describes."""
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return model.model.rotary_emb


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("said", SAID)
def test_frequencies_are_those_of_transformers(family: str, said: str, tmp_path: Path) -> None:
    config = {**SHAPE, "model_type": family, **SAID[said]}
    expected = truth(config, tmp_path)
    for inv_freq, scale in rotated(config):
        assert np.allclose(inv_freq, expected.inv_freq.numpy(), rtol=1e-6)
        assert scale == pytest.approx(expected.attention_scaling)


@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
@pytest.mark.parametrize(
    "said",
    [
        {"rope_scaling": LINEAR, "rope_parameters": NESTED},
        {"rope_scaling": None, "rope_parameters": NESTED},
        {"rope_scaling": {"rope_theta": 900.0, **LINEAR}, "rope_parameters": NESTED},
    ],
    ids=["both", "null", "theta"],
)
def test_layers_with_a_window_are_not_scaled(
    family: str, said: dict[str, Any], tmp_path: Path
) -> None:
    config = {**SHAPE, **LAYERS, "model_type": family, "head_dim": 12, **said}
    expected = truth(config, tmp_path)
    for kind, (inv_freq, _) in zip(KINDS, rotated(config), strict=True):
        wanted = getattr(expected, f"{kind}_inv_freq").numpy()
        assert np.allclose(inv_freq, wanted, rtol=1e-6), kind


@pytest.mark.parametrize("name", ["mistral", "ministral"])
@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, [0, 8]),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, [8, 8]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, [0, 4096]),
        ({"layer_types": ["full_attention"] * 2, "sliding_window": None}, [0, 0]),
        ({"layer_types": None, "sliding_window": 8}, [8, 8]),
        ({"sliding_window": 8}, [8, 8]),
    ],
)
def test_mistrals_windows_are_where_the_config_says(
    name: str, said: dict[str, Any], windows: list[int]
) -> None:
    program = build_program({**SHAPE, "model_type": name, **said})
    assert [layer.window for layer in program.kv] == windows
