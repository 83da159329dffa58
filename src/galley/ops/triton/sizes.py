"""Compute what a program's weights and rows take on a device, and what a step reads of it."""

import math
from typing import Final

import torch

from galley.formats.weights import flat
from galley.graph.plan import Lifetime, least_arena
from galley.graph.program import Op, Program
from galley.ops.triton.attention import key_stride, stored_columns
from galley.ops.triton.packing import packed_bytes
from galley.ops.triton.supported import programs_of
from galley.types import BLOCK_TOKENS
from galley.types.model_info import ExpertCosts

ACTIVATIONS: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""``activations`` -> type of rows between ops."""

CACHES: Final = {**ACTIVATIONS, "int8": torch.int8, "int4": torch.uint8}
"""``kv_dtype`` -> element type of the cache."""

KV_BITS: Final = {"int8": 8, "int4": 4}
"""``kv_dtype`` -> bits of an element of a cache of integers."""


KEPT_WINDOWS: Final = 2
"""Maximum number of lengths of encoder inputs whose launches are kept as graphs; the last ones used."""


def weight_bytes(program: Program, dtype: torch.dtype) -> int:
    """Return the bytes of all packed weights, where a tensor that two ops share counts once."""
    sizes: dict[tuple[str, ...], int] = {}
    for op in (op for one in programs_of(program) for op in one.ops):
        for role, names in op.weights.items():
            if role in op.signature.matrices:
                sizes[names] = _matrix_bytes(program, names, dtype)
            else:
                sizes[names] = 4 * sum(math.prod(program.all_shapes[name]) for name in names)
    return sum(sizes.values())


def read_bytes(program: Program, dtype: torch.dtype) -> int:
    """Return the bytes of the matrices that a row is multiplied by."""
    return sum(_role_bytes(program, op, dtype)[1] for op in program.ops)


def expert_costs(program: Program, dtype: torch.dtype) -> ExpertCosts:
    """Return the costs of all experts of the program."""
    sizes = [_role_bytes(program, op, dtype) for op in program.ops if op.signature.routed]
    held, read = (sum(size[i] for size in sizes) for i in range(2))
    return ExpertCosts(held, read / held) if held else ExpertCosts()


def _role_bytes(program: Program, op: Op, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of an op's matrices, and of those that a row is multiplied by."""
    if not op.signature.multiplies:
        return 0, 0
    names = [op.weights[role] for role in op.signature.matrices]
    held = [_matrix_bytes(program, role, dtype) for role in names]
    return sum(held), sum(op.for_a_row(size) for size in held)


def _matrix_bytes(program: Program, names: tuple[str, ...], dtype: torch.dtype) -> int:
    shapes = [flat(program.all_shapes[name]) for name in names]
    rows = sum(shape[0] for shape in shapes)
    return packed_bytes(program.kinds[names[0]], rows, shapes[0][1], dtype)


def scratch_bytes(program: Program, dtype: torch.dtype) -> int:
    """Return the bytes of the largest quantized matrix when dequantized, as in steps of many rows."""
    return max(
        (
            sum(math.prod(one.shapes[name]) for name in op.weights["weight"]) * dtype.itemsize
            for one in programs_of(program)
            for op in one.ops
            if op.signature.multiplies
            and not op.signature.routed
            and not one.kind_of(op).is_dense
            and dtype != torch.float32
        ),
        default=0,
    )


def kv_block_bytes(program: Program, kv_dtype: str) -> int:
    """Return the bytes of a block over all layers, each of which has separate memory for every block."""
    size = CACHES[kv_dtype].itemsize
    bits = KV_BITS.get(kv_dtype, 0)
    scales = 8 if bits else 0
    columns = [
        key_stride(kv, bits) + (0 if kv.shared else stored_columns(kv.value_dim, bits))
        for kv in program.kv
    ]
    return BLOCK_TOKENS * sum(
        kv.kv_heads * (size * each + scales) for kv, each in zip(program.kv, columns, strict=True)
    )


def row_bytes(program: Program, dtype: torch.dtype) -> int:
    """Return the bytes of one row of the buffers live at a time, doubled for the allocator's rounding."""
    last = {b: i for i, op in enumerate(program.ops) for b in op.inputs}
    lifetimes = [
        Lifetime(width * dtype.itemsize, i, last.get(b, i))
        for i, op in enumerate(program.ops)
        if op.name != "columns"
        for b, width in zip(op.outputs, op.widths, strict=True)
    ]
    lifetimes += [
        Lifetime(_work_bytes(program, op, dtype), i, i)
        for i, op in enumerate(program.ops)
        if op.name in ("experts", "all_gather", "embed_part") and not op.attrs.get("leader_only")
    ]
    return 2 * least_arena(lifetimes) + 64


def encoder_bytes(program: Program, dtype: torch.dtype) -> int:
    """Return the bytes of the buffers for the longest encoder input; 0 without an encoder.

    The graphs of windows keep theirs.
    """
    if program.encoder is None:
        return 0
    whole = program.encoder.max_positions * row_bytes(program.encoder, dtype)
    return (1 + KEPT_WINDOWS) * whole


def gathered_logit_bytes(program: Program) -> int:
    """Return the bytes of a row of logits while they are gathered from all ranks; 0 of a whole model."""
    return sum(
        _exchange_columns(op.attrs["ranks"]) * torch.float32.itemsize
        for op in program.ops
        if op.name == "all_gather" and op.attrs["leader_only"]
    )


def _exchange_columns(ranks: tuple[int, ...]) -> int:
    """Return the columns of a row in an exchange: this rank's, padded to the widest, and those of all."""
    return (len(ranks) + 1) * max(ranks, default=0)


def _work_bytes(program: Program, op: Op, dtype: torch.dtype) -> int:
    """Return the bytes for a row within an op.

    For its choices of experts: between their matrices, behind them, and sorted. For exchanges: what all
    ranks send.
    """
    if op.name == "embed_part":
        return _exchange_columns((op.width,) * len(op.attrs["ranks"])) * dtype.itemsize
    if op.name == "all_gather":
        return _exchange_columns(op.attrs["ranks"]) * dtype.itemsize
    hidden, inner = program.shapes[op.weights["down"][0]]
    columns = hidden + inner + _exchange_columns(op.attrs.get("ranks", ()))
    return int(op.attrs["per_token"]) * (columns * dtype.itemsize + 4 + 12)
