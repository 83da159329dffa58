"""Scales for rounding the inputs of a layer to int8 where one scale serves all tokens ("static").

An observer sees the inputs of texts and says the largest magnitude that the range covers; what is larger is
clipped. The choices are those of "Integer Quantization for Deep Learning Inference: Principles and
Empirical Evaluation", arXiv:2004.09602, and mean squared error. Kernels need none: they give each token
scales of its own ("dynamic", :mod:`galley.quant.int8_inputs`).
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.formats.weights import Floats

Observer: TypeAlias = Callable[[Floats], float]
"""Inputs [tokens, depth] -> the largest magnitude that int8 is to cover."""

STEPS: Final = 127
"""Of int8 on each side of 0."""

_PERCENTILE: Final = 99.9
_BINS: Final = 2048
_TRIED: Final = 64
"""Ranges that the searches try."""


def min_max(rows: Floats) -> float:
    """Nothing is clipped."""
    return float(np.abs(rows).max())


def percentile(rows: Floats) -> float:
    """One value in a thousand is clipped."""
    return float(np.percentile(np.abs(rows), _PERCENTILE))


def least_squares(rows: Floats) -> float:
    """The range with the least squared error ("mse")."""
    whole = min_max(rows)
    ranges = [whole * (i + 1) / _TRIED for i in range(_TRIED)]
    errors = [float(np.square(static_int8(rows, r) - rows, dtype=np.float64).sum()) for r in ranges]
    return ranges[int(np.argmin(errors))]


def entropy(rows: Floats) -> float:
    """The range whose histogram of steps diverges least from that of the values (KL)."""
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
"""By name."""


def static_int8(rows: Floats, largest: float) -> Floats:
    """Inputs rounded to int8 steps of the one scale that covers magnitudes up to ``largest``."""
    if not largest:
        return rows
    scale = np.float32(largest / STEPS)
    made: Floats = np.clip(np.rint(rows / scale), -STEPS, STEPS) * scale
    return made


def _divergence(counts: npt.NDArray[np.float64], end: int) -> float:
    """KL(values || steps) of a histogram whose bins from ``end`` on are clipped."""
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
    # What the steps cannot say at all counts as much as a factor of e to the tenth.
    return float((p[both] * np.log(p[both] / q[both])).sum() + 10 * lost)
