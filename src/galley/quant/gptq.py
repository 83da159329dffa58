"""GPTQ: columns are rounded in order, and the later columns compensate for each error.

"GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", arXiv:2210.17323, with
the order of its authors' later code: columns with the largest inputs come first ("act-order"), while each
group's grid is computed from its original columns ("static groups"), so files need no ``g_idx``.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from galley.formats.weights import Floats
from galley.quant.columns import one_by_one
from galley.quant.grid import Grid, Scheme, groups_of, inverse, search

Reals = npt.NDArray[np.float64 | np.float32]

_DAMPING: Final = 0.01
"""Damping: fraction of the mean of the Hessian's diagonal that is added to the diagonal."""

_DOUBLE: Final = 4096
"""Maximum number of columns for which the factor is computed in float64; more would take minutes."""

_FACTORED: Final = 512
"""Number of columns of a Cholesky factor that are computed at once."""

_INVERTED: Final = 256
"""Maximum columns of a triangular matrix that are inverted at once; more are split in halves."""


def gptq(
    matrix: Floats, factor: Floats, order: npt.NDArray[np.int64], scheme: Scheme
) -> tuple[Floats, Grid]:
    """Quantize a matrix for inputs with a known :func:`factor_of`; return its integers and grid.

    Args:
        matrix: [outputs, depth]; outputs do not depend on each other.
        factor: factor of the inverse Hessian, with columns in ``order``.
        order: order in which columns are rounded.
        scheme: quantization scheme.

    Returns:
        The integers [outputs, depth] and their grid.
    """
    grid = search(groups_of(matrix, scheme), scheme)
    columns = scheme.columns(matrix.shape[1])
    low, high = scheme.levels
    left = np.ascontiguousarray(matrix.T[order])
    found = np.empty_like(left)
    scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)
    inverses = inverse(scales)

    def error(i: int) -> Floats:
        g = order[i] // columns
        q = np.rint(left[i] * inverses[g]) + zeros[g]
        np.clip(q, low, high, out=q)
        found[i] = q
        missed: Floats = (left[i] - (q - zeros[g]) * scales[g]) / factor[i, i]
        return missed

    one_by_one(left, factor, error)
    integers = np.empty_like(found)
    integers[order] = found
    return np.ascontiguousarray(integers.T), grid


def corrected(
    matrix: Floats,
    missed: Floats,
    inputs: Floats,
    factor: Floats,
    order: npt.NDArray[np.int64],
) -> Floats:
    """Return the matrix whose outputs for the actual inputs are nearest to those for the original inputs.

    A layer thus compensates for the error of the layers before it: "Quantization Error Propagation:
    Revisiting Layer-Wise Post-Training Quantization", arXiv:2504.09629, with all of the error.

    Args:
        matrix: [outputs, depth].
        missed: [tokens, depth], the original inputs minus the actual ones.
        inputs: [tokens, depth], the actual inputs.
        factor: factor of the actual inputs' inverse Hessian, with columns in ``order``.
        order: order of these columns.
    """
    ordered = np.empty_like(factor)
    ordered[:, order] = factor
    # Which order is the cheapest depends on whether the matrix has more outputs or columns.
    made_up: Floats = np.linalg.multi_dot([matrix, missed.T, inputs, ordered.T, ordered])
    made_up += matrix
    return made_up


def factor_of(hessian: Floats, *, act_order: bool = True) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the upper factor U of the damped inverse Hessian, U'U = inv(H), and its column order.

    An input that is always 0 gets the mean of the diagonal, as its weights do not matter.

    Args:
        hessian: [depth, depth], the sum of x x' over inputs x.
        act_order: put columns with the largest inputs first; False: keep their order.
    """
    kind: type[np.float64 | np.float32] = np.float64 if len(hessian) <= _DOUBLE else np.float32
    diagonal = hessian.diagonal().astype(np.float64)
    order = np.argsort(-diagonal, kind="stable") if act_order else np.arange(len(diagonal))
    mean = diagonal.mean() or 1.0
    damped: Reals = hessian[np.ix_(order, order)].astype(kind)
    at = np.arange(len(damped))
    damped[at, at] += np.where(diagonal[order] == 0, mean, _DAMPING * mean).astype(kind)
    # With rows and columns reversed, the Cholesky factor becomes an upper one: H = R R', inv(H) = U'U.
    upper = _lower_factor(np.ascontiguousarray(damped[::-1, ::-1]))[::-1, ::-1]
    return _inverse_of_upper(upper).astype(np.float32), order


def _lower_factor(matrix: Reals) -> Reals:
    """Compute the Cholesky factor in place, in the lower triangle of the matrix.

    numpy's own function takes three times as long and needs a second matrix.
    """
    depth = len(matrix)
    product = np.empty((depth, _FACTORED), matrix.dtype)
    for first in range(0, depth, _FACTORED):
        end = min(first + _FACTORED, depth)
        own = np.linalg.cholesky(matrix[first:end, first:end])
        matrix[first:end, first:end] = own
        below = matrix[end:, first:end] @ np.linalg.inv(own).T
        matrix[end:, first:end] = below
        for left in range(end, depth, _FACTORED):
            right = min(left + _FACTORED, depth)
            of_strip = product[left:, : right - left]
            np.matmul(below[left - end :], below[left - end : right - end].T, out=of_strip)
            matrix[left:, left:right] -= of_strip
    return matrix


def _inverse_of_upper(upper: Reals) -> Reals:
    """Return the inverse of the upper triangle of a matrix, computed with products of its blocks."""
    depth = len(upper)
    if depth <= _INVERTED:
        return np.linalg.inv(np.triu(upper))
    middle = depth // 2
    found = np.zeros_like(upper)
    found[:middle, :middle] = left = _inverse_of_upper(upper[:middle, :middle])
    found[middle:, middle:] = right = _inverse_of_upper(upper[middle:, middle:])
    found[:middle, middle:] = -(left @ upper[:middle, middle:] @ right)
    return found
