"""Integers and scales with which a layer's outputs come closer still, from those that a method found.

Steps of two kinds take turns, and neither makes the squared error of the outputs greater: each integer
moves to its best value while all others stay ("QuantEase: Optimization-based Quantization for Language
Models", arXiv:2309.01885), and the scales of a row become those of least squares for its integers.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from galley.formats.weights import Floats
from galley.quant.grid import Grid, Scheme, groups_of, inverse, values

Doubles = npt.NDArray[np.float64]

_TURNS: Final = 3
"""Of both steps; the first gains most."""

_BLOCK: Final = 128
"""Columns whose moves are told among themselves before they are told to all others."""

_EQUATIONS_BYTES: Final = 1 << 26
"""Of the normal equations of the rows that are solved together; small groups make many of a row's."""

_RIDGE: Final = 1e-6
"""Part of the mean of its diagonal that is added to that of a row's normal equations."""


def refined(
    matrix: Floats, integers: Floats, grid: Grid, hessian: Floats, scheme: Scheme
) -> tuple[Floats, Grid]:
    """Integers [outputs, depth] and their grid after some turns of both steps.

    Args:
        matrix: [outputs, depth], what they should stand for.
        integers: that a method found.
        grid: of their groups.
        hessian: [depth, depth], the sum of x x' over inputs x.
        scheme: how.
    """
    seen = matrix @ hessian
    for _ in range(_TURNS):
        grid = _fitted(seen, integers, grid, hessian, scheme)
        integers = _moved(seen, integers, grid, hessian, scheme)
    return integers, grid


def _moved(seen: Floats, integers: Floats, grid: Grid, hessian: Floats, scheme: Scheme) -> Floats:
    """Each integer moved once, columns in order; ``seen`` is the matrix times the Hessian."""
    columns = scheme.columns(integers.shape[1])
    low, high = scheme.levels
    stood = values(groups_of(integers, scheme), grid).reshape(integers.shape)
    # A column is a row here, so that it lies together.
    slope = np.ascontiguousarray((seen - stood @ hessian).T)
    q, value = np.ascontiguousarray(integers.T), np.ascontiguousarray(stood.T)
    scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)
    inverses = inverse(scales)
    diagonal = hessian.diagonal()
    curvature = np.where(diagonal > 0, diagonal, np.inf).astype(np.float32)
    for first in range(0, len(q), _BLOCK):
        end = min(first + _BLOCK, len(q))
        changes = np.empty((end - first, q.shape[1]), np.float32)
        for i in range(first, end):
            g = i // columns
            wanted = value[i] + slope[i] / curvature[i]
            new = np.rint(wanted * inverses[g]) + zeros[g]
            np.clip(new, low, high, out=new)
            changes[i - first] = change = (new - q[i]) * scales[g]
            q[i] = new
            slope[i + 1 : end] -= hessian[i, i + 1 : end, None] * change
        slope[end:] -= hessian[end:, first:end] @ changes
    return np.ascontiguousarray(q.T)


def _fitted(seen: Floats, integers: Floats, grid: Grid, hessian: Floats, scheme: Scheme) -> Grid:
    """The scales of least squares for the integers, in rows where they are better as stored."""
    steps = integers - np.repeat(grid.zeros, scheme.columns(integers.shape[1]), axis=1)
    scales = grid.scales.copy()
    rows = max(1, _EQUATIONS_BYTES // (8 * scales.shape[1] ** 2))
    for first in range(0, len(steps), rows):
        at = slice(first, first + rows)
        scales[at] = _solved(seen[at], steps[at], scales[at], hessian, scheme)
    return Grid(scales, grid.zeros)


def _solved(seen: Floats, steps: Floats, scales: Floats, hessian: Floats, scheme: Scheme) -> Floats:
    """See :func:`_fitted`; ``steps`` are the integers less their zero points."""
    normal, wanted = _equations(seen, steps, hessian, scheme)
    at = np.arange(normal.shape[1])
    damped = normal.copy()
    mean = damped[:, at, at].mean(axis=1, keepdims=True)
    # A group of zeros has no scale of its own.
    damped[:, at, at] += np.where(damped[:, at, at] == 0, mean + 1, _RIDGE * mean)
    solved = np.linalg.solve(damped, wanted[:, :, None])[:, :, 0]
    found = scheme.as_scales(solved.astype(np.float32))
    better = _error(normal, wanted, found) < _error(normal, wanted, scales)
    return np.where(better[:, None], found, scales)


def _equations(
    seen: Floats, steps: Floats, hessian: Floats, scheme: Scheme
) -> tuple[Doubles, Doubles]:
    """Normal equations of each row's scales: [outputs, groups, groups] and [outputs, groups]."""
    columns = scheme.columns(steps.shape[1])
    groups = steps.shape[1] // columns
    normal = np.empty((len(steps), groups, groups))
    for g in range(groups):
        at = slice(g * columns, (g + 1) * columns)
        product = (steps[:, at] @ hessian[at]) * steps
        normal[:, g] = groups_of(product, scheme).sum(axis=2)
    return normal, groups_of(seen * steps, scheme).sum(axis=2).astype(np.float64)


def _error(normal: Doubles, wanted: Doubles, scales: Floats) -> Doubles:
    """Of each row, the squared error less what no scale changes."""
    at = scales.astype(np.float64)
    error: Doubles = np.einsum("rg,rgh,rh->r", at, normal, at) - 2 * (at * wanted).sum(axis=1)
    return error
