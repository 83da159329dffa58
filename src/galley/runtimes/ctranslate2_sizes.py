"""The memory of keys and values in a decoder of CTranslate2, by the shapes of its matrices."""

import re
from typing import Final

from galley.formats.ctranslate2_file import CTranslate2File

_SELF: Final = re.compile(r"(decoder/layer_\d+/self_attention)/linear_0/weight")
_CROSS: Final = re.compile(r"decoder/layer_\d+/attention/linear_1/weight")
_VALUE_BYTES: Final = 4
"""Bytes of a float32, the type of activations on CPUs unless ``compute_type`` is a type of 16 bits."""


def kv_bytes_per_token(file: CTranslate2File) -> int:
    """Return the bytes of a token in all layers.

    A layer's first matrix has the rows of queries, keys and values, and its second one a column for each
    query's.
    """
    total = 0
    for name in file.names():
        if found := _SELF.fullmatch(name):
            rows = matrix_shape(file, name)[0]
            total += max(0, rows - matrix_shape(file, f"{found[1]}/linear_1/weight")[1])
    return _VALUE_BYTES * total


def kv_bytes_per_row(file: CTranslate2File) -> int:
    """Return the bytes of a row of an encoder's output in all layers."""
    names = [name for name in file.names() if _CROSS.fullmatch(name)]
    return _VALUE_BYTES * sum(matrix_shape(file, name)[0] for name in names)


def matrix_shape(file: CTranslate2File, name: str) -> tuple[int, int]:
    """Return (rows, columns) of a matrix. Raises CheckpointError if it is none."""
    shape = file.get(name).shape
    if len(shape) != 2:
        raise file.wrong(name, f"has shape {list(shape)}, expected a matrix")
    return shape[0], shape[1]
