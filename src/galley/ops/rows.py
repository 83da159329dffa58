"""Reductions over a row of logits, native if available, because numpy is slow on a whole vocabulary."""

import functools
import math
import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

try:
    from galley import _native
    from galley.ops.isa import choose_isa
except ImportError:  # the reference executor is used, which logged a warning at start
    _native = None  # type: ignore[assignment]

Row: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]


def top_k(row: Row, count: int) -> Ids:
    """Return the ids of the ``count`` greatest logits, greatest first, equal ones by id, NaN last."""
    count = min(count, len(row))
    if _native is None:
        return np.argsort(-row, kind="stable")[:count]
    ids = np.empty(count, dtype=np.int64)
    _native.top_k(row, _isa(), ids)
    return ids


def logsumexp(row: Row) -> float:
    """Return the logarithm of the sum of exponentials; NaN if the greatest element is not finite."""
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
    """Raise SettingsError if GALLEY_CPU_ISA names an instruction set that cannot run here."""
    if _native is not None:
        _isa()
