"""Rounding methods on matrices with known inputs: each must gain what its paper claims."""

import numpy as np
import pytest

from galley import UnsupportedModel
from galley.formats.values import dequantize
from galley.quant.awq import input_scales, output_error, rounded
from galley.quant.gptq import factor_of, gptq
from galley.quant.grid import Scheme, check_finite, fit, groups_of, nearest, steps, values
from tests.quant.matrices import SCHEMES, hessian, matrix


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_nearest_step_is_taken(scheme: Scheme) -> None:
    weight = nearest("w", matrix(), scheme)
    step = np.repeat(np.abs(weight.scales), weight.group, axis=1)
    low, high = scheme.levels
    assert weight.q.min() >= low
    assert weight.q.max() <= high
    off = np.abs(dequantize(weight) - matrix())
    # The end of the range with one step less is half a step away, and zero points are rounded.
    assert (off <= (0.51 if scheme.bits == 8 else 1.01) * step).all()
    assert np.median(off / step) < 0.3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_clip_search_never_has_a_greater_error(scheme: Scheme) -> None:
    plain, searched = (dequantize(nearest("w", matrix(), scheme, clip=c)) for c in (False, True))
    errors = [
        np.square(groups_of(found - matrix(), scheme)).sum(axis=2) for found in (plain, searched)
    ]
    assert (errors[1] <= errors[0] * 1.0001).all()
    if scheme.bits == 4:
        assert errors[1].sum() < 0.95 * errors[0].sum()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gptq_has_a_far_smaller_error_of_the_outputs(scheme: Scheme) -> None:
    known = hessian()
    integers, grid = gptq(matrix(), *factor_of(known), scheme)
    found = values(groups_of(integers, scheme), grid).reshape(integers.shape)
    low, high = scheme.levels
    assert low <= integers.min() <= integers.max() <= high
    error = output_error(matrix(), found, known)
    assert error < 0.5 * output_error(matrix(), rounded(matrix(), scheme), known)


def test_gptq_of_independent_inputs_is_rounding_to_nearest() -> None:
    scheme = Scheme(4, 32)
    integers, grid = gptq(matrix(), *factor_of(np.eye(128, dtype=np.float32)), scheme)
    assert np.array_equal(
        steps(groups_of(matrix(), scheme), grid, scheme).reshape(48, 128), integers
    )


def test_gptqs_factor_is_that_of_the_inverse() -> None:
    known = hessian()
    known[:, 5] = known[5, :] = 0  # an input that is always zero
    factor, order = factor_of(known)
    assert sorted(order) == list(range(128))
    assert known.diagonal()[order[0]] == known.diagonal().max()
    damped = known[np.ix_(order, order)].astype(np.float64)
    mean = known.diagonal().mean()
    damped[np.arange(128), np.arange(128)] += np.where(known.diagonal()[order] == 0, 1, 0.01) * mean
    assert np.allclose(np.triu(factor), factor)
    assert np.allclose(factor.T.astype(np.float64) @ factor, np.linalg.inv(damped), rtol=1e-3)


def test_the_factor_of_many_columns_is_made_in_blocks() -> None:
    """The size is a multiple of neither the factor's blocks nor its inverse's."""
    inputs = np.random.default_rng(2).standard_normal((1500, 1100)).astype(np.float32)
    known = inputs.T @ inputs
    factor, order = factor_of(known)
    assert np.array_equal(np.triu(factor), factor)
    damped = known[np.ix_(order, order)].astype(np.float64)
    damped[np.arange(1100), np.arange(1100)] += 0.01 * known.diagonal().mean(dtype=np.float64)
    product = factor.astype(np.float64) @ damped @ factor.T.astype(np.float64)
    assert np.abs(product - np.eye(1100)).max() < 1e-4


def test_awq_scales_columns_with_large_inputs() -> None:
    scheme, known = Scheme(4, 32), hessian()
    scales = input_scales([matrix(), matrix(16)], known, scheme)
    assert scales[::37].min() > 1.2 * np.median(scales)
    scaled = rounded(matrix() * scales, scheme) / scales
    plain = output_error(matrix(), rounded(matrix(), scheme), known)
    assert output_error(matrix(), scaled, known) < 0.8 * plain


def test_values_that_no_integer_stands_for_are_refused() -> None:
    wrong = matrix()
    wrong[3, 5] = np.inf
    with pytest.raises(UnsupportedModel, match="tensor w"):
        check_finite("w", wrong)


def test_a_group_of_zeros_stays_zero() -> None:
    zeros = np.zeros((2, 64), np.float32)
    for scheme in SCHEMES[:2]:
        assert not dequantize(nearest("w", zeros, scheme)).any()
        assert np.isfinite(fit(groups_of(zeros, scheme), scheme).scales).all()
