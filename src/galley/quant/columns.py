"""Columns of a matrix taken one after another, where each one's change bears on all that come later.

A column is a row here, [depth, outputs], so that it lies together.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from galley.formats.weights import Floats

Change: TypeAlias = Callable[[int], Floats]
"""Column -> how it changes, [outputs]; what the columns before it did has been told by then."""

_FEW: Final = 16
"""Columns that tell each other one by one; more do so half by half, as one product of matrices."""


def one_by_one(told: Floats, coupling: Floats, change: Change) -> None:
    """For each column i, in order: ``told[j] -= coupling[i, j] * change(i)`` for all j > i.

    Args:
        told: [depth, outputs], changed in place.
        coupling: [depth, depth]; what is above its diagonal counts.
        change: of a column.
    """
    changes = np.empty_like(told)

    def between(first: int, end: int) -> None:
        if end - first > _FEW:
            middle = (first + end) // 2
            between(first, middle)
            told[middle:end] -= coupling[first:middle, middle:end].T @ changes[first:middle]
            between(middle, end)
            return
        for i in range(first, end):
            changes[i] = change(i)
            told[i + 1 : end] -= coupling[i, i + 1 : end, None] * changes[i]

    between(0, len(told))
