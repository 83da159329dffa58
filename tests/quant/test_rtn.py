"""Round-to-nearest stays within half a step, and handles edge cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from galley.formats.values import bf16_bits, dequantize
from galley.quant.rtn import quantize_int4, quantize_int8
from tests.native.harness import as_weight, round_bf16

matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=300),
    elements=st.floats(-100, 100, width=32),
)


def spread(scales: np.ndarray, group: int, depth: int) -> np.ndarray:
    return np.repeat(np.abs(scales), group, axis=1)[:, :depth]


@given(matrices, st.sampled_from([0, 32, 64, 128]))
def test_int8_is_within_half_a_step(values: np.ndarray, group: int) -> None:
    weight = quantize_int8(as_weight(values), group=group)
    error = np.abs(dequantize(weight) - values)
    step = spread(weight.scales, weight.group, values.shape[1])
    # The scale is rounded to bfloat16 (2^-9), so 127 steps may end a quarter of a step too early.
    assert (error <= 0.5001 * step + 1e-27).all()
    assert np.abs(weight.q).max(initial=0) <= 127


@given(matrices, st.sampled_from([0, 32, 64, 128]))
def test_int4_is_within_about_a_step(values: np.ndarray, group: int) -> None:
    depth = values.shape[1]
    both_ways = quantize_int4(as_weight(values), group=group, symmetric=False)
    error = np.abs(dequantize(both_ways) - values)
    # The scale is rounded to bfloat16 (2^-9) and the zero point to a whole step.
    assert (error <= 1.1 * spread(both_ways.scales, both_ways.group, depth) + 1e-27).all()
    one_way = quantize_int4(as_weight(values), group=group)
    error = np.abs(dequantize(one_way) - values)
    # -8 to 7: the value opposite the extreme may miss by a whole step.
    assert (error <= 1.1 * spread(one_way.scales, one_way.group, depth) + 1e-27).all()


def test_the_group_is_the_widest_that_divides() -> None:
    for depth, group in ((256, 128), (192, 64), (96, 32), (70, 32), (5, 32)):
        for quantize in (quantize_int4, quantize_int8):
            weight = quantize(as_weight(np.ones((3, depth), np.float32)))
            assert weight.group == group
            assert weight.scales.shape == (3, -(-depth // group))


def test_scales_are_what_their_type_holds() -> None:
    values = np.random.default_rng(0).standard_normal((20, 70)).astype(np.float32)
    for weight in (quantize_int4(as_weight(values)), quantize_int8(as_weight(values))):
        assert weight.scale_type == "BF16"
        assert np.array_equal(round_bf16(weight.scales), weight.scales)


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros((4, 64), np.float32)
    assert not dequantize(quantize_int8(as_weight(zeros))).any()
    for symmetric in (True, False):
        assert not dequantize(quantize_int4(as_weight(zeros), symmetric=symmetric)).any()


def test_large_matrices_are_quantized_like_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    whole = quantize_int4(as_weight(values)), quantize_int8(as_weight(values))
    monkeypatch.setattr("galley.quant.rtn._CHUNK_ELEMENTS", 640)
    parts = quantize_int4(as_weight(values)), quantize_int8(as_weight(values))
    for a, b in zip(whole, parts, strict=True):
        assert np.array_equal(a.q, b.q)
        assert np.array_equal(a.scales, b.scales)


def test_bf16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.1415927, 1e-40], np.float32)
    assert bf16_bits(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC049, 0x0001]
