"""Reductions over a row of logits, native where that is to be had: for numpy a vocabulary is long."""

import functools
import math
import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

try:
    from galley import _native
    from galley.ops.isa import choose_isa
except ImportError:  # the reference executor serves, and said so when it started
    _native = None  # type: ignore[assignment]

Row: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]


def top_k(row: Row, count: int) -> Ids:
    """The ids of the ``count`` greatest, greatest first, equals by id, NaN last."""
    count = min(count, len(row))
    if _native is None:
        return np.argsort(-row, kind="stable")[:count]
    ids = np.empty(count, dtype=np.int64)
    _native.top_k(row, _isa(), ids)
    return ids


def logsumexp(row: Row) -> float:
    """Logarithm of the sum of exponentials; NaN if the greatest element is not finite."""
    most = float(row.max())
    if not math.isfinite(most):
        return math.nan
    if _native is None:
        return most + math.log(np.exp(row.astype(np.float64) - most).sum())
    return most + math.log(_native.sum_exp(row, most, _isa()))


@functools.cache
def _isa() -> str:
    return choose_isa(os.environ)


def check_isa() -> None:
    """Raises SettingsError if GALLEY_CPU_ISA names what cannot run here."""
    if _native is not None:
        _isa()
