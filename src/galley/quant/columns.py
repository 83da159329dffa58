"""Processes the columns of a matrix in order, where each column's change affects all later columns.

Matrices are transposed here, [depth, outputs], so that each column is contiguous in memory.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from galley.formats.weights import Floats

Change: TypeAlias = Callable[[int], Floats]
"""Column index -> the column's change, [outputs]; called once the earlier columns are applied."""

_FEW: Final = 16
"""Up to this many columns are updated one by one; more are halved and updated by a matrix product."""


def one_by_one(values: Floats, coupling: Floats, change: Change) -> None:
    """Apply, for each column i in order, ``values[j] -= coupling[i, j] * change(i)`` for all j > i.

    Args:
        values: [depth, outputs], changed in place.
        coupling: [depth, depth]; only the part above the diagonal is used.
        change: returns the change of a column.
    """
    changes = np.empty_like(values)

    def between(first: int, end: int) -> None:
        if end - first > _FEW:
            middle = (first + end) // 2
            between(first, middle)
            values[middle:end] -= coupling[first:middle, middle:end].T @ changes[first:middle]
            between(middle, end)
            return
        for i in range(first, end):
            changes[i] = change(i)
            values[i + 1 : end] -= coupling[i, i + 1 : end, None] * changes[i]

    between(0, len(values))
