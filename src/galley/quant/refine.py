"""Refines the integers and scales that another method found, to reduce a layer's output error further.

Two steps alternate, and neither increases the squared error of the outputs: each integer moves to its best
value while all others stay fixed ("QuantEase: Optimization-based Quantization for Language Models",
arXiv:2309.01885), and the scales of a row are set by least squares for its integers.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from galley.formats.weights import Floats
from galley.quant.columns import one_by_one
from galley.quant.grid import Grid, Scheme, inverse

Doubles = npt.NDArray[np.float64]

_TURNS: Final = 1
"""Number of iterations of both steps; further ones gain less than random variation."""

_EQUATIONS_BYTES: Final = 1 << 26
"""Bytes of the normal equations solved at a time; rows with small groups have many."""

_RIDGE: Final = 1e-6
"""Damping: fraction of the mean of the diagonal that is added to a row's normal equations."""


def refined(
    matrix: Floats, integers: Floats, grid: Grid, hessian: Floats, scheme: Scheme
) -> tuple[Floats, Grid]:
    """Return integers [outputs, depth] and their grid after alternating both steps.

    Args:
        matrix: [outputs, depth], the original matrix.
        integers: integers that another method found.
        grid: grid of the integers' groups.
        hessian: [depth, depth], the sum of x x' over inputs x.
        scheme: quantization scheme.
    """
    # Matrices are transposed here, as in `one_by_one`.
    seen = hessian @ np.ascontiguousarray(matrix.T)
    q = np.ascontiguousarray(integers.T)
    grid = Grid(np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T))
    for _ in range(_TURNS):
        grid = _fitted(seen, q, grid, hessian, scheme)
        _move(seen, q, grid, hessian, scheme)
    return np.ascontiguousarray(q.T), Grid(*(np.ascontiguousarray(g.T) for g in grid))


def _move(seen: Floats, q: Floats, grid: Grid, hessian: Floats, scheme: Scheme) -> None:
    """Move each integer once, with the columns in order.

    Args:
        seen: [depth, outputs], the Hessian times the matrix.
        q: [depth, outputs], the integers, changed in place.
        grid: [groups, outputs].
        hessian: [depth, depth].
        scheme: quantization scheme.
    """
    columns = scheme.columns(len(q))
    low, high = scheme.levels
    value = _steps(q, grid, columns) * np.repeat(grid.scales, columns, axis=0)
    slope = seen - hessian @ value
    inverses = inverse(grid.scales)
    diagonal = hessian.diagonal()
    curvature = np.where(diagonal > 0, diagonal, np.inf).astype(np.float32)

    def change(i: int) -> Floats:
        g = i // columns
        wanted = value[i] + slope[i] / curvature[i]
        new = np.rint(wanted * inverses[g]) + grid.zeros[g]
        np.clip(new, low, high, out=new)
        moved: Floats = (new - q[i]) * grid.scales[g]
        q[i] = new
        return moved

    one_by_one(slope, hessian, change)


def _steps(q: Floats, grid: Grid, columns: int) -> Floats:
    """Return the integers minus their zero points: [depth, outputs]."""
    return q - np.repeat(grid.zeros, columns, axis=0)


def _fitted(seen: Floats, q: Floats, grid: Grid, hessian: Floats, scheme: Scheme) -> Grid:
    """Return the grid with least-squares scales, for the outputs where these are better once stored.

    The arguments are those of :func:`_move`.
    """
    steps = _steps(q, grid, scheme.columns(len(q)))
    scales = grid.scales.copy()
    outputs = max(1, _EQUATIONS_BYTES // (8 * len(scales) ** 2))
    for first in range(0, steps.shape[1], outputs):
        at = np.s_[:, first : first + outputs]
        scales[at] = _solved(seen[at], steps[at], scales[at], hessian, scheme)
    return Grid(scales, grid.zeros)


def _solved(seen: Floats, steps: Floats, scales: Floats, hessian: Floats, scheme: Scheme) -> Floats:
    """Return scales [groups, outputs]; ``steps`` [depth, outputs] are integers minus zero points."""
    normal, wanted = _equations(seen, steps, hessian, len(scales))
    at = np.arange(normal.shape[1])
    damped = normal.copy()
    mean = damped[:, at, at].mean(axis=1, keepdims=True)
    # A group of zeros determines no scale.
    damped[:, at, at] += np.where(damped[:, at, at] == 0, mean + 1, _RIDGE * mean)
    solved = np.linalg.solve(damped, wanted[:, :, None])[:, :, 0]
    found = scheme.as_scales(solved.T.astype(np.float32))
    better = _error(normal, wanted, found) < _error(normal, wanted, scales)
    return np.where(better, found, scales)


def _equations(
    seen: Floats, steps: Floats, hessian: Floats, groups: int
) -> tuple[Doubles, Doubles]:
    """Return each output's normal equations: [outputs, groups, groups] and [outputs, groups]."""
    depth, outputs = steps.shape
    columns = depth // groups
    normal = np.empty((outputs, groups, groups))
    for g in range(groups):
        first = g * columns
        product = hessian[first:, first : first + columns] @ steps[first : first + columns]
        product *= steps[first:]
        sums = product.reshape(-1, columns, outputs).sum(axis=1).T
        normal[:, g, g:] = normal[:, g:, g] = sums
    wanted = (seen * steps).reshape(groups, columns, outputs).sum(axis=1)
    return normal, np.ascontiguousarray(wanted.T).astype(np.float64)


def _error(normal: Doubles, wanted: Doubles, scales: Floats) -> Doubles:
    """Return each output's squared error up to a constant; ``scales`` are [groups, outputs]."""
    at = scales.T.astype(np.float64)
    error: Doubles = np.einsum("rg,rgh,rh->r", at, normal, at) - 2 * (at * wanted).sum(axis=1)
    return error
