"""Reductions over a row of logits, native where that is to be had: for numpy a vocabulary is long."""

import functools
import math
import os
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

try:
    from galley import _native
except ImportError:  # the reference executor serves, and said so when it started
    _native = None  # type: ignore[assignment]

Row: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Doubles: TypeAlias = npt.NDArray[np.float64]

EXP_BLOCK: Final = 1024
"""Elements that one of :func:`exp_sums` adds up."""


def best(row: Row, count: int) -> Ids:
    """The ids of the ``count`` greatest, greatest first, equals by id, NaN last."""
    count = min(count, len(row))
    if _native is None:
        return np.argsort(-row, kind="stable")[:count]
    ids = np.empty(count, dtype=np.int64)
    _native.best(row, ids)
    return ids


def exp_sums(row: Row, most: float, temperature: float) -> Doubles:
    """For each EXP_BLOCK elements in turn the sum of ``exp((x - most) / temperature)``, in float64.

    Args:
        row: the last block may be shorter.
        most: the greatest element; finite.
        temperature: above 0.
    """
    if _native is None:
        p = np.exp(scaled(row, most, temperature))
        return np.add.reduceat(p, np.arange(0, len(row), EXP_BLOCK))
    sums = np.empty(-(-len(row) // EXP_BLOCK), dtype=np.float64)
    _native.exp_sums(row, most, temperature, _isa(), sums)
    return sums


def log_sum(row: Row) -> float:
    """Logarithm of the sum of exponentials; NaN if the greatest element is not finite."""
    most = float(row.max())
    if not math.isfinite(most):
        return math.nan
    return most + math.log(exp_sums(row, most, 1.0).sum())


@functools.cache
def _isa() -> str:
    from galley.ops.cpu import choose_isa

    return choose_isa(os.environ)


def scaled(row: Row, most: float, temperature: float) -> Doubles:
    """``(x - most) / temperature`` in float64: the logarithm of what :func:`exp_sums` adds up."""
    with np.errstate(over="ignore"):
        shifted: Doubles = (row.astype(np.float64) - most) / temperature
    return shifted
