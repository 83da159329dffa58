"""Refining integers and scales of a matrix with known inputs brings its outputs closer to the target."""

import numpy as np
import pytest

from galley.formats.weights import Floats
from galley.quant import refine
from galley.quant.awq import output_error
from galley.quant.gptq import corrected, factor_of, gptq
from galley.quant.grid import Grid, Scheme, fit, groups_of, steps, values
from galley.quant.refine import refined
from tests.quant.matrices import SCHEMES, correlated, hessian, matrix


def stood_for(integers: Floats, grid: Grid, scheme: Scheme) -> Floats:
    return values(groups_of(integers, scheme), grid).reshape(integers.shape)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_error_of_the_outputs_gets_smaller_in_each_row(scheme: Scheme) -> None:
    known = hessian()
    integers, grid = gptq(matrix(), *factor_of(known), scheme)
    found, refitted = refined(matrix(), integers, grid, known, scheme)
    low, high = scheme.levels
    assert low <= found.min() <= found.max() <= high
    assert np.array_equal(found, np.rint(found))
    assert np.array_equal(scheme.as_scales(refitted.scales), refitted.scales)
    before, after = stood_for(integers, grid, scheme), stood_for(found, refitted, scheme)
    rows = [
        [output_error(matrix()[i : i + 1], made[i : i + 1], known) for i in range(48)]
        for made in (before, after)
    ]
    assert (np.array(rows[1]) <= 1.001 * np.array(rows[0])).all()
    assert sum(rows[1]) < (0.95 if scheme.bits == 4 else 1.0) * sum(rows[0])


def test_rows_may_be_solved_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, known = Scheme(4, 32), hessian()
    integers, grid = gptq(matrix(), *factor_of(known), scheme)
    whole = stood_for(*refined(matrix(), integers, grid, known, scheme), scheme)
    monkeypatch.setattr(refine, "_EQUATIONS_BYTES", 5 * 8 * 4**2)  # of 48 rows of 4 groups
    parts = stood_for(*refined(matrix(), integers, grid, known, scheme), scheme)
    off = [output_error(matrix(), made, known) for made in (whole, parts)]
    assert off[1] == pytest.approx(off[0], rel=1e-3)
    assert np.mean(np.isclose(whole, parts, rtol=1e-2)) > 0.99


def test_what_is_on_the_grid_stays_there() -> None:
    scheme = Scheme(4, 32)
    grouped = groups_of(matrix(), scheme)
    grid = fit(grouped, scheme)
    integers = steps(grouped, grid, scheme).reshape(48, 128)
    exact = stood_for(integers, grid, scheme)
    found, refitted = refined(exact, integers, grid, hessian(), scheme)
    assert np.allclose(stood_for(found, refitted, scheme), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [Scheme(4, 32), Scheme(4, 32, symmetric=False)])
def test_inputs_and_weights_of_zero_are_no_trouble(scheme: Scheme) -> None:
    known, weights = hessian(), matrix()
    known[:, 5] = known[5, :] = 0
    weights[:, 32:64] = 0
    integers, grid = gptq(weights, *factor_of(known), scheme)
    found, refitted = refined(weights, integers, grid, known, scheme)
    assert np.isfinite(found).all()
    assert np.isfinite(refitted.scales).all()


def test_a_matrix_compensates_the_error_of_its_inputs() -> None:
    originals = correlated()
    random = np.random.default_rng(3)
    inputs = (originals + 0.2 * random.standard_normal(originals.shape)).astype(np.float32)
    inputs[:, 3] = 0.5 * originals[:, 3]
    known = inputs.T @ inputs
    factor, order = factor_of(known)
    lost: Floats = np.subtract(originals, inputs)
    found = corrected(matrix(), lost, inputs, factor, order)
    wanted = originals @ matrix().T

    def error(weights: Floats) -> float:
        return float(np.square(inputs @ weights.T - wanted).sum())

    # For ridge regression, with GPTQ's addition to the diagonal, starting from the matrix.
    ridge = 0.01 * known.diagonal().mean() * np.eye(128)
    missed = (wanted - inputs @ matrix().T).T @ inputs
    best = matrix() + np.linalg.solve(known + ridge, missed.T.astype(np.float64)).T
    assert np.allclose(found, best, atol=2e-3)
    assert error(found) < 0.5 * error(matrix())
    same = corrected(matrix(), np.zeros_like(lost), inputs, factor, order)
    assert np.array_equal(same, matrix())
