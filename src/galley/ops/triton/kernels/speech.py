"""``im2col`` and ``cross_weights`` of speech models.

Shapes: im2col's x [rows before, channels] and result [rows, channels * size], column j * size + t of which is
column j of tap t; cross_weights' q [rows, heads * key_dim], result [rows, all chosen heads, most rows] float32; keys
and tables as in ``attention.py``.

Order of summation: a score is one sum over a key's columns; a row's weights are divided by the sum over
BLOCK_KV keys at a time, from the first on. A program has one row, so its bits depend on that row alone.
"""

import triton
import triton.language as tl

from galley.ops.triton.kernels.kv_codes import stride_of, unpacked

_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LOWEST: tl.constexpr = tl.constexpr(-1e30)


@triton.jit(do_not_specialize=["rows"])
def im2col_kernel(
    x_ptr, out_ptr, sequence_ptr, position_ptr, start_ptr, rows, channels, x_stride, out_stride,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs: (ROWS rows, block of columns).

    Args:
        sequence_ptr, position_ptr: [rows] int32: the input of a row of the result, and its number there.
        start_ptr: [inputs + 1] int32: the first row of each input in x.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    real = row < rows
    owner = tl.load(sequence_ptr + row, mask=real, other=0)
    first, end = (
        tl.load(start_ptr + owner, mask=real, other=0),
        tl.load(start_ptr + owner + 1, mask=real, other=0),
    )
    at = tl.load(position_ptr + row, mask=real, other=0) * STRIDE + first
    source = at + column % SIZE - SIZE // 2
    inside = real & (column < channels * SIZE)
    read = inside & (source >= first) & (source < end)
    x = tl.load(x_ptr + source.to(tl.int64) * x_stride + column // SIZE, mask=read, other=0.0)
    tl.store(out_ptr + row * out_stride + column, x, mask=inside)


@triton.jit
def _scores(
    q, first, count, key_ptr, scale_ptr, table_ptr, head, kv_heads, scale, KEY: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_KV: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """[BLOCK_KV] scores of keys from ``first`` on, in units of log 2; minus infinity from ``count`` on."""
    d, at = tl.arange(0, BLOCK_D), first + tl.arange(0, BLOCK_KV)
    there = at < count
    block = tl.load(table_ptr + at // BLOCK_TOKENS, mask=there, other=0)
    place = (block.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + at % BLOCK_TOKENS
    if BITS == 4:
        half = tl.arange(0, BLOCK_D // 2)
        inside = there[:, None] & (half[None, :] < stride_of(KEY, BITS))
        place_of = place[:, None] * stride_of(KEY, BITS) + half[None, :]
        both = tl.load(key_ptr + place_of, mask=inside, other=0)
        k = unpacked(both, tl.load(scale_ptr + place, mask=there, other=0), tl.float32)
    else:
        inside = there[:, None] & (d[None, :] < KEY)
        k = tl.load(key_ptr + place[:, None] * KEY + d[None, :], mask=inside, other=0)
    scores = tl.sum(k.to(tl.float32) * q[None, :], axis=1) * scale
    if BITS == 8:
        scores *= tl.load(scale_ptr + place, mask=there, other=0.0)
    return tl.where(there, scores * _LOG2E, float("-inf"))


@triton.jit(do_not_specialize=["width"])
def cross_weights_kernel(
    q_ptr, out_ptr, key_ptr, scale_ptr, factor_ptr, head_ptr, sequence_ptr, last_ptr, table_ptr, width, q_stride, out_stride,
    head_stride, kv_heads, shared, scale, KEY: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_KV: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Programs: (row, chosen head).

    Args:
        out_ptr: the weights of the first chosen head; those of a row and a head are ``out_stride`` and
            ``head_stride`` apart.
        head_ptr: [chosen heads] int32.
        sequence_ptr, last_ptr: [rows] int32: a row's sequence, and the last row of its encoder output.
        shared: heads that share a KV head.
    """
    row, chosen = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head = tl.load(head_ptr + chosen)
    count = tl.load(last_ptr + row) + 1
    d = tl.arange(0, BLOCK_D)
    q = tl.load(q_ptr + row * q_stride + head * KEY + d, mask=d < KEY, other=0.0).to(tl.float32)
    if BITS == 4:
        q *= tl.load(factor_ptr + head // shared * KEY + d, mask=d < KEY, other=1.0)
    table_row = table_ptr + tl.load(sequence_ptr + row).to(tl.int64) * width
    most = tl.full((1,), _LOWEST, tl.float32)
    total = tl.zeros((1,), tl.float32)
    for first in range(0, count, BLOCK_KV):
        scores = _scores(
            q, first, count, key_ptr, scale_ptr, table_row, head // shared, kv_heads, scale, KEY, BLOCK_D, BLOCK_KV,
            BLOCK_TOKENS, BITS,
        )  # fmt: skip
        both = tl.maximum(most, tl.max(scores, axis=0))
        total = total * tl.exp2(most - both) + tl.sum(tl.exp2(scores - both), axis=0)
        most = both
    out = out_ptr + row * out_stride + chosen * head_stride
    for first in range(0, count, BLOCK_KV):
        scores = _scores(
            q, first, count, key_ptr, scale_ptr, table_row, head // shared, kv_heads, scale, KEY, BLOCK_D, BLOCK_KV,
            BLOCK_TOKENS, BITS,
        )  # fmt: skip
        at = first + tl.arange(0, BLOCK_KV)
        tl.store(out + at, tl.exp2(scores - most) / total, mask=at < count)
