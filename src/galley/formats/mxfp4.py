"""MXFP4 checkpoints in the layout of gpt-oss: ``NAME_blocks`` and ``NAME_scales``.

Blocks are uint8 [..., rows, groups, 16], two E2M1 values a byte, low half first; scales are uint8
[..., rows, groups], E8M0. Source: transformers' ``integrations/mxfp4.py``; OCP MX Specification 1.0.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Final

from galley.formats.float_tables import FP4
from galley.formats.quantization import Section
from galley.formats.safetensors import StoredTensor
from galley.formats.scaled_floats import ScaledFloats, e8m0
from galley.formats.stored import Matrix, Stored, array
from galley.formats.weights import MXFP4_GROUP, DenseWeight, Floats, TensorInfo, Weight

_GROUP_BYTES: Final = MXFP4_GROUP // 2


def read_mxfp4(section: Section, stored: Stored) -> dict[str, Matrix]:
    """Return the tensors of all pairs of blocks and scales, as they are or, without a change, as bfloat16.

    Raises:
        CheckpointError: a tensor has no scales, or they contradict each other.
    """
    return {name: _matrix(name, stored) for name in stored.modules("_blocks")}


def _matrix(name: str, stored: Stored) -> Matrix:
    blocks, scales = stored.take(f"{name}_blocks"), stored.take(f"{name}_scales")
    if len(blocks.shape) < 3 or len(blocks.shape) > 8:
        raise blocks.wrong(f"has shape {list(blocks.shape)}, expected [..., rows, groups, 16]")
    array(blocks, "U8", (*(None for _ in blocks.shape[:-1]), _GROUP_BYTES))
    array(scales, "U8", blocks.shape[:-1])
    shape = (*blocks.shape[:-2], blocks.shape[-2] * MXFP4_GROUP)
    flat = (math.prod(shape[:-1]), shape[-1])
    floats = mxfp4_matrix(name, blocks, flat, partial(_scales, scales, flat[0]), stored)
    matrix = floats.matrix(change="no value changes")

    def unpack() -> Weight:
        weight = matrix.unpack()
        return replace(weight, shape=shape) if isinstance(weight, DenseWeight) else weight

    return Matrix(
        TensorInfo(shape, matrix.info.kind),
        unpack,
        matrix.stored,
        matrix.stored_bytes,
        matrix.change,
    )


def mxfp4_matrix(
    name: str,
    blocks: StoredTensor,
    shape: tuple[int, int],
    scales: "partial[Floats]",
    stored: Stored,
) -> ScaledFloats:
    """Return a matrix of E2M1 values in groups of 32 columns; ``scales`` reads [rows, groups]."""
    return ScaledFloats(
        name=name,
        weight=blocks,
        table=FP4,
        shape=shape,
        block=(1, MXFP4_GROUP),
        scales=scales,
        floats="BF16",
        stored="MXFP4",
        keeps_floats=stored.keeps_floats,
        powers_of_two=True,
    )


def _scales(tensor: StoredTensor, rows: int) -> Floats:
    return e8m0(tensor).reshape(rows, -1)
