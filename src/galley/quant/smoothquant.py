"""SmoothQuant: inputs with outliers are scaled down, and the corresponding weight columns are scaled up.

"SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
arXiv:2211.10438. The operation that produces the inputs is divided by the scales, so the model computes the
same function; rounding inputs of similar magnitude to int8 costs less accuracy. The strength alpha is
searched for each layer; the paper uses one per model.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from galley.formats.weights import Floats, WeightKind
from galley.quant.awq import rounded
from galley.quant.grid import Scheme
from galley.quant.int8_inputs import dynamic_int8, input_group

_ALPHAS: Final = tuple(i / 10 for i in range(3, 10))
_ROWS: Final = 512
"""Maximum number of outputs of each matrix, evenly spaced, that the search uses."""

_SMALLEST: Final = 1e-5
"""Floor for inputs and columns, relative to the largest: rarely used ones need no own scale."""


def smoothing_scales(
    matrices: Sequence[Floats], largest: Floats, sample: Floats, scheme: Scheme
) -> Floats:
    """Return the column scales [depth] for matrices that read the same inputs.

    Args:
        matrices: matrices, each [outputs, depth].
        largest: [depth], the largest magnitude of each input.
        sample: [rows, depth], sample inputs; their products are used to compare strengths.
        scheme: quantization scheme of the matrices.
    """
    columns = np.max([np.abs(matrix).max(axis=0) for matrix in matrices], axis=0)
    inputs, weights = _positive(largest), _positive(columns)
    sampled = np.concatenate([matrix[:: -(-len(matrix) // _ROWS)] for matrix in matrices])
    truth = sample @ sampled.T
    kind = WeightKind(f"int{scheme.bits}", scheme.columns(sample.shape[1]))
    columns = input_group(kind, sample.shape[1])
    best, least = np.ones(len(inputs), np.float32), np.inf
    for alpha in (None, *_ALPHAS):
        scales = np.ones(len(inputs)) if alpha is None else inputs**alpha / weights ** (1 - alpha)
        scales = (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)
        made = dynamic_int8(sample / scales, columns) @ rounded(sampled * scales, scheme).T
        error = float(np.square(made - truth, dtype=np.float64).sum())
        if error < least:
            best, least = scales, error
    return best


def _positive(values: Floats) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    return np.maximum(values.astype(np.float64), _SMALLEST * (float(values.max()) or 1.0))
