"""kv_b_proj of latent attention, split into the matrices of single heads."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.latent import HeadMatrices
from galley.formats.values import bf16_bits, dequantize, to_float32
from galley.formats.weights import DENSE_KINDS, DenseWeight, IntWeight, LoadedWeights, Weight
from galley.models.registry import build_program
from galley.ops.kinds import own_kinds, plan_kinds
from galley.quant.rtn import quantize_int8

HEADS, KEYS, VALUES, LATENT = 3, 5, 7, 11
CONFIG = {"num_attention_heads": HEADS, "qk_nope_head_dim": KEYS, "v_head_dim": VALUES}
SMALL: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
}
SIZES = {"qk_nope_head_dim": 128, "v_head_dim": 128}  # where config.json does not specify it
NAME = "model.layers.0.self_attn.kv_b_proj"


def dense(shape: tuple[int, int] = (HEADS * (KEYS + VALUES), LATENT)) -> DenseWeight:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return DenseWeight(f"{NAME}.weight", "F32", shape, values.reshape(-1).view(np.uint8))


def parts(weight: Weight) -> HeadMatrices:
    other = DenseWeight("norm.weight", "F32", (2,), np.ones(2, np.float32).view(np.uint8))
    return HeadMatrices(LoadedWeights({weight.name: weight, other.name: other}), CONFIG)


def floats(weight: Weight) -> Any:
    assert isinstance(weight, DenseWeight)
    return to_float32(weight).reshape(weight.shape)


def test_each_head_has_its_rows_and_those_of_keys_are_transposed() -> None:
    whole = dense()
    made = parts(whole)
    assert len(made) == 1 + 2 * HEADS
    assert whole.name not in made
    rows = floats(whole).reshape(HEADS, KEYS + VALUES, LATENT)
    for head in range(HEADS):
        key, value = f"{NAME}.{head}.key.weight", f"{NAME}.{head}.value.weight"
        assert made.info(key) == ((LATENT, KEYS), DENSE_KINDS["F32"])
        assert made.info(value) == ((VALUES, LATENT), DENSE_KINDS["F32"])
        assert np.array_equal(floats(made[key]), rows[head, :KEYS].T)
        assert np.array_equal(floats(made[value]), rows[head, KEYS:])
        assert not made.is_rounded(key)
    with pytest.raises(KeyError):
        made[whole.name]


def test_integers_become_the_bfloat16_that_they_stand_for_and_stay_so() -> None:
    whole = quantize_int8(dense())
    assert isinstance(whole, IntWeight)
    made = parts(whole)
    name = f"{NAME}.2.value.weight"
    bits = bf16_bits(dequantize(whole))[-VALUES:]
    part = made[name]
    assert isinstance(part, DenseWeight)
    assert part.dtype == "BF16"
    assert np.array_equal(part.data.view(np.uint16).reshape(VALUES, LATENT), bits)
    assert made.is_rounded(name)
    assert "bfloat16" in made.notes[0]


def test_parts_of_integers_are_not_rounded_to_integers_again() -> None:
    program = build_program(SMALL)
    weights: dict[str, Weight] = {}
    for name, shape in program.all_shapes.items():
        if ".kv_b_proj." not in name:
            raw = np.ones(math.prod(shape), np.float32).view(np.uint8)
            weights[name] = DenseWeight(name, "F32", shape, raw)
    rows = dense((2 * (128 + 128), 512))
    for layer in range(SMALL["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn.kv_b_proj.weight"
        weights[name] = dataclasses.replace(quantize_int8(rows), name=name)
    own = own_kinds(program, HeadMatrices(LoadedWeights(weights), {**SIZES, **SMALL}))
    kinds = plan_kinds(program, "int4", own=own)
    assert len(own) == 2 * 2 * SMALL["num_hidden_layers"]
    assert {kinds[name].name for name in own} == {"bf16"}
    assert "int4" in {kind.name for kind in kinds.values()}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CONFIG | {"v_head_dim": 8}, r"has shape \[36, 11\], expected 39 rows: 3 heads of 5 \+ 8"),
        (CONFIG | {"qk_nope_head_dim": "5"}, r"qk_nope_head_dim.*is '5'"),
        ({}, r"num_attention_heads.*is None"),
    ],
)
def test_sizes_that_do_not_fit_are_named(config: dict[str, Any], said: str) -> None:
    whole = dense()
    with pytest.raises(CheckpointError, match=said):
        HeadMatrices(LoadedWeights({whole.name: whole}), config)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"qk_rope_head_dim": 5}, CheckpointError, "qk_rope_head_dim"),
        ({"norm_topk_prob": True}, UnsupportedModel, "norm_topk_prob"),
        ({"topk_method": "noaux_tc"}, UnsupportedModel, "topk_method"),
    ],
)
def test_configs_that_no_model_has_are_refused(
    changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        build_program(SMALL | changes)
