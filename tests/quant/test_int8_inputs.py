"""Inputs of linear layers as integers: the largest of each group has 16 bits, all others 8."""

import numpy as np
import pytest

from galley.quant.int8_inputs import dynamic_int8


def rows(seed: int, count: int, depth: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((count, depth)).astype(np.float32)


@pytest.mark.parametrize("outlier", [1.0, 5.0, -40.0, 250.0])
def test_an_outlier_costs_the_others_no_precision(outlier: float) -> None:
    x = rows(0, 200, 64)
    others = np.delete(np.arange(64), 5)
    x[:, 5] = outlier * np.abs(x[:, others]).max(axis=1)
    off = np.abs(dynamic_int8(x, 64) - x)
    step = np.abs(x[:, others]).max(axis=1) / 127
    assert (off.max(axis=1) <= step * 0.501).all()


def test_the_largest_always_fits_16_bits() -> None:
    x = rows(1, 50, 32)
    x[:, 7] = 1e5
    rounded = dynamic_int8(x, 32)
    assert np.allclose(rounded[:, 7], 1e5, rtol=1e-6)
    # One unit is a 32767th of it.
    assert (np.abs(rounded - x).max(axis=1) <= 1e5 / 32767 * 0.501).all()


def test_groups_have_their_own_scales() -> None:
    x = rows(2, 20, 96)
    whole = dynamic_int8(x, 32)
    for begin in (0, 32, 64):
        part = slice(begin, begin + 32)
        assert np.array_equal(whole[:, part], dynamic_int8(x[:, part], 32))


def test_equal_largest_inputs_share_the_scale() -> None:
    x = np.full((1, 16), 0.5, np.float32)
    x[0, 3], x[0, 9] = 2.0, -2.0
    assert np.array_equal(dynamic_int8(x, 16), np.rint(x * 63.5).astype(np.float32) * (2 / 127))


@pytest.mark.parametrize("value", [0.0, 1e-31])
def test_what_is_too_small_to_divide_by_is_zero(value: float) -> None:
    x = np.full((2, 16), value, np.float32)
    assert not dynamic_int8(x, 16).any()


def test_a_single_input_is_kept() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 11] = -3.0
    assert dynamic_int8(x, 32) == pytest.approx(x, rel=1e-6)
