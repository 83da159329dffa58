"""Scales for rounding the inputs of a layer to int8 if one scale is used for all tokens ("static").

An observer gets the inputs for some texts and returns the largest magnitude that the range covers; larger
values are clipped. The choices are those of "Integer Quantization for Deep Learning Inference: Principles
and Empirical Evaluation", arXiv:2004.09602, and mean squared error. The kernels need no observer: they use
separate scales for each token ("dynamic", :mod:`galley.quant.int8_inputs`).
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.formats.weights import Floats

Observer: TypeAlias = Callable[[Floats], float]
"""Inputs [tokens, depth] -> the largest magnitude that int8 should cover."""

STEPS: Final = 127
"""Number of int8 steps on each side of 0."""

_PERCENTILE: Final = 99.9
_BINS: Final = 2048
_TRIED: Final = 64
"""Number of ranges that the searches try."""


def min_max(rows: Floats) -> float:
    """Return the largest magnitude, which clips nothing."""
    return float(np.abs(rows).max())


def percentile(rows: Floats) -> float:
    """Return the magnitude that clips one value in a thousand."""
    return float(np.percentile(np.abs(rows), _PERCENTILE))


def least_squares(rows: Floats) -> float:
    """Return the range with the least squared error ("mse")."""
    whole = min_max(rows)
    ranges = [whole * (i + 1) / _TRIED for i in range(_TRIED)]
    errors = [float(np.square(static_int8(rows, r) - rows, dtype=np.float64).sum()) for r in ranges]
    return ranges[int(np.argmin(errors))]


def entropy(rows: Floats) -> float:
    """Return the range whose histogram of steps has the least KL divergence from that of the values."""
    whole = min_max(rows)
    counts = np.histogram(np.abs(rows), _BINS, (0, whole or 1.0))[0].astype(np.float64)
    ends = np.unique(np.linspace(STEPS + 1, _BINS, _TRIED).astype(int))
    losses = [_divergence(counts, int(end)) for end in ends]
    return whole * float(ends[int(np.argmin(losses))]) / _BINS


OBSERVERS: Final[Mapping[str, Observer]] = {
    "min-max": min_max,
    "percentile": percentile,
    "mse": least_squares,
    "entropy": entropy,
}
"""Name -> observer."""


def static_int8(rows: Floats, largest: float) -> Floats:
    """Round inputs to int8 steps of the one scale that covers magnitudes up to ``largest``."""
    if not largest:
        return rows
    scale = np.float32(largest / STEPS)
    made: Floats = np.clip(np.rint(rows / scale), -STEPS, STEPS) * scale
    return made


def _divergence(counts: npt.NDArray[np.float64], end: int) -> float:
    """Return KL(values || steps) of a histogram whose bins from ``end`` on are clipped."""
    p = counts[:end].copy()
    p[-1] += counts[end:].sum()
    step = np.arange(end) * (STEPS + 1) // end
    filled = counts[:end] > 0
    totals = np.bincount(step, counts[:end], STEPS + 1)
    bins = np.bincount(step, filled, STEPS + 1)
    q = np.where(filled, totals[step] / np.maximum(bins[step], 1), 0)
    p, q = p / p.sum(), q / (q.sum() or 1.0)
    both = (p > 0) & (q > 0)
    lost = p[(p > 0) & (q == 0)].sum()
    # Values too small for any step count as an error by a factor of e to the tenth.
    return float((p[both] * np.log(p[both] / q[both])).sum() + 10 * lost)
