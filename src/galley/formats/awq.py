"""AWQ checkpoints in the layout of AutoAWQ's GEMM kernel: integers of 4 bits, packed along the outputs.

A module has ``qweight`` [inputs, outputs / 8], ``qzeros`` [groups, outputs / 8] and ``scales`` [groups,
outputs]. The eight integers of a word, lowest bits first, belong to its outputs 0, 2, 4, 6, 1, 3, 5, 7
(AutoAWQ, ``WQLinear_GEMM.from_linear``).
"""

from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from galley.formats.packed_integers import PackedIntegers, unpack
from galley.formats.quantization import Section
from galley.formats.safetensors import StoredTensor
from galley.formats.stored import Bytes, Matrix, Stored, array, read_floats, scale_type
from galley.formats.weights import Floats

Words = npt.NDArray[np.int32]

_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Positions of outputs 0 to 7 in their word."""


def read_awq(section: Section, stored: Stored) -> dict[str, Matrix]:
    """Return the matrices of all modules in this packing.

    Raises:
        CheckpointError: tensors contradict the config or each other.
        UnsupportedModel: they are laid out for another kernel than GEMM.
    """
    section.choice("version" if "version" in section.raw else "format", "gemm", ("gemm",))
    if section.whole("bits", 4) != 4:
        raise section.unsupported("bits", "AWQ's GEMM layout has 4")
    group = section.whole("group_size", -1, least=-1)
    modules = stored.modules(".qweight")
    return {f"{name}.weight": _integers(name, group, stored).matrix() for name in modules}


def _integers(name: str, group: int, stored: Stored) -> PackedIntegers:
    qweight, scales = stored.take(f"{name}.qweight"), stored.take(f"{name}.scales")
    qzeros = stored.take_any(f"{name}.qzeros")
    words: Words = array(qweight, "I32", (None, None))
    depth, outputs = words.shape[0], words.shape[1] * 8
    group = depth if group < 1 else min(group, depth)
    groups = -(-depth // group)
    kind = scale_type(scales)
    array(scales, kind, (groups, outputs))
    zeros = None
    if qzeros is not None:
        packed: Words = array(qzeros, "I32", (groups, words.shape[1]))
        zeros = partial(_transposed, packed)
    return PackedIntegers(
        name=f"{name}.weight",
        weight=qweight,
        bits=4,
        shape=(outputs, depth),
        group=group,
        scale_type=kind,
        q=partial(_transposed, words),
        scales=partial(_scales, scales),
        zeros=zeros,
        order=None,
        floats=stored.floats,
    )


def _transposed(words: Words) -> Bytes:
    """Return the integers [outputs, rows] of words [rows, outputs / 8]."""
    q = unpack(words, 4, words.shape[1] * 8).reshape(len(words), -1, 8)
    return np.ascontiguousarray(q[:, :, _PLACES].reshape(len(words), -1).T)


def _scales(scales: StoredTensor) -> Floats:
    return np.ascontiguousarray(read_floats(scales).T)
