"""AWQ: columns with large inputs are scaled up before they are rounded, and their inputs are scaled down.

"AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", arXiv:2306.00978. The
operation that produces the inputs is divided by the same scales, so the model computes the same function.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from galley.formats.weights import Floats
from galley.quant.grid import Grid, Scheme, fit, groups_of, search, steps, values

_EXPONENTS: Final = tuple(i / 20 for i in range(20))
_ROWS: Final = 512
"""Maximum number of outputs of each matrix, evenly spaced, that the search uses."""


def input_scales(matrices: Sequence[Floats], hessian: Floats, scheme: Scheme) -> Floats:
    """Return the column scales [depth] for matrices that read the same inputs.

    The scales are powers of the root mean square of each input. The exponent with the least error of the
    matrices' outputs is chosen; 0, which leaves the columns unscaled, is one of the candidates.

    Args:
        matrices: matrices, each [outputs, depth].
        hessian: [depth, depth], the sum of x x' over inputs x.
        scheme: quantization scheme of the matrices.
    """
    size = np.sqrt(np.maximum(hessian.diagonal(), 0)).astype(np.float64)
    size = np.maximum(size, 1e-4 * (size.max() or 1.0))
    sampled = [matrix[:: -(-len(matrix) // _ROWS)] for matrix in matrices]
    best, least = np.ones(len(size), np.float32), np.inf
    for exponent in _EXPONENTS:
        scales = size**exponent
        scales = (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)
        error = sum(
            output_error(matrix, rounded(matrix * scales, scheme) / scales, hessian)
            for matrix in sampled
        )
        if error < least:
            best, least = scales, error
    return best


def rounded(matrix: Floats, scheme: Scheme, grid: Grid | None = None) -> Floats:
    """Return a matrix [outputs, depth] rounded to the nearest steps."""
    grouped = groups_of(matrix, scheme)
    grid = grid or fit(grouped, scheme)
    return values(steps(grouped, grid, scheme), grid).reshape(matrix.shape)


def clipped(matrix: Floats, hessian: Floats, scheme: Scheme) -> Grid:
    """Return the grid whose clipping of each group gives the least error, weighted by input magnitude."""
    grouped = groups_of(matrix, scheme)
    importance = hessian.diagonal().reshape(grouped.shape[1:])
    return search(grouped, scheme, importance)


def output_error(matrix: Floats, quantized: Floats, hessian: Floats) -> float:
    """Return the squared error of a matrix's outputs, summed over the inputs of the ``hessian``."""
    change = quantized - matrix
    return float(np.einsum("ij,ij->", change @ hessian, change, dtype=np.float64))
