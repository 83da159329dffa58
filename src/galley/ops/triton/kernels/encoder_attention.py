"""``encoder_attention``: rows of whole texts or encoder inputs against the keys and values of their own rows.

Shapes: q [rows, heads * key_dim], k [rows, kv_heads * key_dim], v [rows, kv_heads * value_dim], result [rows, heads *
value_dim], all with a row stride; starts [sequences + 1] int32, the first row of each text.

A tile is a few consecutive rows of one text; the heads that share a KV head are rows of one product. Order of
summation: a running softmax (arXiv:2205.14135) over BLOCK_KV keys at a time, from the text's first one up; the sums of
weights come from the same products as the values. So a row's bits depend on its text alone.
"""

import triton
import triton.language as tl

_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LOWEST: tl.constexpr = tl.constexpr(-1e30)


@triton.jit
def encoder_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tile_ptr, start_ptr, q_stride, k_stride, v_stride, out_stride, scale, before, after,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr,
):  # fmt: skip
    """See the module. Programs: (tile, KV head).

    Args:
        tile_ptr: [tiles, 3] int32: text (-1: none), first row, number of rows.
        before, after: how many rows before and after its own a row sees; -1: all.
        SHARED: heads that share a KV head; BLOCK_S: the next power of two.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    text = tl.load(tile_ptr + tile * 3)
    if text < 0:
        return
    first_row = tl.load(tile_ptr + tile * 3 + 1)
    count = tl.load(tile_ptr + tile * 3 + 2)
    begin, end = tl.load(start_ptr + text), tl.load(start_ptr + text + 1)
    m = tl.arange(0, BLOCK_Q * BLOCK_S)
    token, shared = m // BLOCK_S, m % BLOCK_S
    inside = (token < count) & (shared < SHARED)
    row = (first_row + token).to(tl.int64)
    column = head * SHARED + shared
    d, dv, offset = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_KV)
    q = tl.load(
        q_ptr + row[:, None] * q_stride + column[:, None] * KEY + d[None, :],
        mask=inside[:, None] & (d[None, :] < KEY),
        other=0.0,
    )
    dtype: tl.constexpr = q.dtype
    length = end - begin
    at = first_row - begin + token
    low = tl.zeros_like(at)
    high = low + length - 1
    start, stop = 0, length
    if before >= 0:
        low = at - before
        start = tl.maximum(0, first_row - begin - before) // BLOCK_KV * BLOCK_KV
    if after >= 0:
        high = tl.minimum(high, at + after)
        stop = tl.minimum(length, first_row - begin + count + after)
    most = tl.full((BLOCK_Q * BLOCK_S,), _LOWEST, tl.float32)
    total = tl.zeros((BLOCK_Q * BLOCK_S, 16), tl.float32)
    mixed = tl.zeros((BLOCK_Q * BLOCK_S, BLOCK_V), tl.float32)
    ones = tl.full((BLOCK_KV, 16), 1.0, dtype)
    for first in range(start, stop, BLOCK_KV):
        key = first + offset
        place = (begin + key).to(tl.int64)
        there = key < length
        inside_k = there[None, :] & (d[:, None] < KEY)
        k = tl.load(
            k_ptr + place[None, :] * k_stride + head * KEY + d[:, None], mask=inside_k, other=0.0
        )
        inside_v = there[:, None] & (dv[None, :] < VALUE)
        v = tl.load(
            v_ptr + place[:, None] * v_stride + head * VALUE + dv[None, :], mask=inside_v, other=0.0
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        seen = (key[None, :] >= low[:, None]) & (key[None, :] <= high[:, None])
        scores = tl.where(seen, scores * _LOG2E, float("-inf"))
        both = tl.maximum(most, tl.max(scores, axis=1))
        shrink = tl.exp2(most - both)
        p = tl.exp2(scores - both[:, None])
        total = tl.dot(p.to(dtype), ones, total * shrink[:, None], input_precision="ieee")
        mixed = tl.dot(p.to(dtype), v, mixed * shrink[:, None], input_precision="ieee")
        most = both
    made = mixed / tl.maximum(tl.max(total, axis=1), 1e-38)[:, None]
    tl.store(
        out_ptr + row[:, None] * out_stride + column[:, None] * VALUE + dv[None, :],
        made.to(out_ptr.dtype.element_ty),
        mask=inside[:, None] & (dv[None, :] < VALUE),
    )
