"""How kernels round the inputs of linear layers to int8: each row by itself, in groups of columns."""

import numpy as np

from galley.formats.weights import Floats, WeightKind


def input_group(kind: WeightKind, depth: int) -> int:
    """Columns of int8 inputs that share a scale beside a matrix of ``depth`` columns (native/packed.cpp).

    Few, so that an outlier costs few others their precision; an equal part of a group of weights, unless
    there is but one.
    """
    group = kind.group or depth
    columns = min(-(-group // 16) * 16, 64 if kind.name == "int8" else 128)
    while group < depth and group % columns:
        columns -= 16
    return columns


def dynamic_int8(rows: Floats, columns: int) -> Floats:
    """[rows, depth]: inputs rounded to int8 steps of a scale for each row and ``columns`` of it."""
    made = np.empty_like(rows)
    for begin in range(0, rows.shape[1], columns):
        part = rows[:, begin : begin + columns]
        most = np.abs(part).max(axis=1, keepdims=True)
        # As native/kernels/rounding.hpp: below, the quotient would overflow.
        usable = most > np.float32(1e-30)
        steps = np.rint(part * np.where(usable, np.float32(127) / np.where(usable, most, 1), 0))
        made[:, begin : begin + columns] = steps * np.where(usable, most / np.float32(127), 0)
    return made
