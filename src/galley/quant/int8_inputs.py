"""Rounding of linear layers' inputs to int8 as in the kernels: per row, in groups of columns."""

import numpy as np

from galley.formats.weights import Floats, WeightKind


def input_group(kind: WeightKind, depth: int) -> int:
    """Return how many int8 inputs share a scale for a matrix of ``depth`` columns.

    As in native/packing/packed.cpp.

    The number is small, so that an outlier costs few other inputs their precision. It divides the weights'
    group size, unless there is only one group.
    """
    group = kind.group or depth
    columns = min(-(-group // 16) * 16, 64 if kind.name == "int8" else 128)
    while group < depth and group % columns:
        columns -= 16
    return columns


def dynamic_int8(rows: Floats, columns: int) -> Floats:
    """Round inputs [rows, depth] to int8 steps of one scale for every ``columns`` columns of a row."""
    made = np.empty_like(rows)
    for begin in range(0, rows.shape[1], columns):
        part = rows[:, begin : begin + columns]
        most = np.abs(part).max(axis=1, keepdims=True)
        # As in native/kernels/rounding.hpp: with a smaller maximum the quotient would overflow.
        usable = most > np.float32(1e-30)
        steps = np.rint(part * np.where(usable, np.float32(127) / np.where(usable, most, 1), 0))
        made[:, begin : begin + columns] = steps * np.where(usable, most / np.float32(127), 0)
    return made
