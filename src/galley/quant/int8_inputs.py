"""Rounding of linear layers' inputs to int8 as in the kernels: per row, in groups of columns."""

from typing import Final

import numpy as np

from galley.formats.weights import Floats, WeightKind

_INT8_STEPS: Final = 127
_INT16_STEPS: Final = 32767

ROUNDING_VERSION: Final = 2
"""Raised with each change of the rounding, so that losses measured with an earlier one are not reused."""


def input_group(kind: WeightKind, depth: int) -> int:
    """Return how many int8 inputs share a scale for a matrix of ``depth`` columns.

    As in native/packing/packed.cpp.

    The number is small, so that an outlier costs few other inputs their precision. It divides the weights'
    group size, unless there is only one group.
    """
    group = kind.group or depth
    columns = min(-(-group // 16) * 16, 128 if kind.name == "int4" else 64)
    while group < depth and group % columns:
        columns -= 16
    return columns


def dynamic_int8(rows: Floats, columns: int) -> Floats:
    """Round inputs [rows, depth] to integers, with one scale for every ``columns`` columns of a row.

    The largest input of such a group keeps 16 bits, and the scale is that of the second largest: otherwise,
    one outlier would cost all others of its group their precision.
    """
    made = np.empty_like(rows)
    for begin in range(0, rows.shape[1], columns):
        made[:, begin : begin + columns] = _rounded(rows[:, begin : begin + columns])
    return made


def _rounded(group: Floats) -> Floats:
    """Round one group of columns, as ``quantize_int8`` of native/kernels/quantize_input.cpp does."""
    others = np.abs(group)
    at = others.argmax(axis=1)[:, None]
    most = np.take_along_axis(others, at, axis=1)
    np.put_along_axis(others, at, 0, axis=1)
    second = others.max(axis=1, keepdims=True)
    by_most = second / np.float32(_INT8_STEPS) < most / np.float32(_INT16_STEPS)
    steps = np.where(by_most, np.float32(_INT16_STEPS), np.float32(_INT8_STEPS))
    largest = np.where(by_most, most, second)
    # With a smaller maximum the quotient would overflow.
    usable = most > np.float32(1e-30)
    inverse = np.where(usable, steps / np.where(usable, largest, 1), 0)
    rounded: Floats = np.rint(group * inverse) * np.where(usable, largest / steps, 0)
    return rounded
