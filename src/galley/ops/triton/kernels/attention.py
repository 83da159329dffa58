"""``attention``: queries of a ragged batch against the paged keys and values of their sequences.

Shapes: queries [rows, heads * key_dim], result [rows, heads * value_dim], both with a row stride; keys
[blocks, kv_heads, BLOCK_TOKENS, key_dim] and values [..., value_dim], of the activations' type, wider, or
8 or 4 bits with a scale for each token and head (``kv_codes.py``); tables [sequences, width] int32. Of latent attention (CUT) a
token's value is the first columns of its key, which is stored once, KEY_STRIDE columns apart; int8 keys have a scale
for the first CUT columns and another for the rest.

A tile is a few consecutive rows of one sequence; the heads that share a KV head are rows of one product.

Order of summation: keys come in stretches of SPLIT positions, from position 0 up. Within one there is a
running softmax (arXiv:2205.14135) over BLOCK_KV keys at a time; stretches are merged in their order.
Where many rows of a sequence come together, one program does all stretches; where one row comes, each
stretch is a program's own, and the last one to end merges them by the same operations. The sums of weights
come from the same matrix products as the values, so that no order of a reduction shows. So a row's bits
depend on its position alone, and one launch computes prompts' chunks and decoding rows together.
"""

import triton
import triton.language as tl

from galley.ops.triton.kernels.kv_codes import stride_of, unpacked

_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LOWEST: tl.constexpr = tl.constexpr(-1e30)


@triton.jit
def merge(most, total, mixed, most_new, total_new, mixed_new):
    """Two stretches of keys as one: greatest scores, sums of weights, sums of values."""
    both = tl.maximum(most, most_new)
    a, b = tl.exp2(most - both), tl.exp2(most_new - both)
    return both, total * a + total_new * b, mixed * a[:, None] + mixed_new * b[:, None]


@triton.jit
def _stretch(
    q, q_at, begin, end, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr, head, kv_heads, scale, cap,
    first_of_row, rest, KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr, CUT: tl.constexpr, KEY_STRIDE: tl.constexpr, BLOCK_KV: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, CAP: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """(greatest score, sum of weights, weighted sum of values) of keys ``begin`` to ``end``."""
    rows: tl.constexpr = q.shape[0]
    dtype: tl.constexpr = q.dtype
    most = tl.full((rows,), _LOWEST, tl.float32)
    total = tl.zeros((rows, 16), tl.float32)
    mixed = tl.zeros((rows, BLOCK_V), tl.float32)
    ones = tl.full((BLOCK_KV, 16), 1.0, dtype)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    offset = tl.arange(0, BLOCK_KV)
    block = tl.load(
        table_ptr + (begin + offset) // BLOCK_TOKENS, mask=begin + offset < end, other=0
    )
    for start in range(begin, end, BLOCK_KV):
        at = start + offset
        there = at < end
        place = (block.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + at % BLOCK_TOKENS
        # Loads of keys, values and the next block numbers are issued together.
        if CUT:
            inside = there[:, None] & (dv[None, :] < CUT)
            v = tl.load(
                key_ptr + place[:, None] * KEY_STRIDE + dv[None, :], mask=inside, other=0
            ).to(dtype)
            k = tl.trans(v)
            r = CUT + tl.arange(0, BLOCK_R)
            inside = there[None, :] & (r[:, None] < KEY)
            more = tl.load(
                key_ptr + place[None, :] * KEY_STRIDE + r[:, None], mask=inside, other=0
            ).to(dtype)
        elif BITS == 4:
            half_k, half_v = tl.arange(0, BLOCK_D // 2), tl.arange(0, BLOCK_V // 2)
            inside = there[:, None] & (half_k[None, :] < KEY_STRIDE)
            both = tl.load(
                key_ptr + place[:, None] * KEY_STRIDE + half_k[None, :], mask=inside, other=0
            )
            pair = tl.load(key_scale_ptr + place, mask=there, other=0)
            k = tl.trans(unpacked(both, pair, dtype))
            inside = there[:, None] & (half_v[None, :] < stride_of(VALUE, BITS))
            both = tl.load(
                value_ptr + place[:, None] * stride_of(VALUE, BITS) + half_v[None, :],
                mask=inside,
                other=0,
            )
            pair = tl.load(value_scale_ptr + place, mask=there, other=0)
            v = unpacked(both, pair, dtype)
        else:
            inside = there[None, :] & (d[:, None] < KEY)
            k = tl.load(
                key_ptr + place[None, :] * KEY_STRIDE + d[:, None], mask=inside, other=0
            ).to(dtype)
            inside = there[:, None] & (dv[None, :] < VALUE)
            v = tl.load(value_ptr + place[:, None] * VALUE + dv[None, :], mask=inside, other=0).to(
                dtype
            )
        behind = at + BLOCK_KV
        block = tl.load(table_ptr + behind // BLOCK_TOKENS, mask=behind < end, other=0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if BITS == 8:
            scores = scores * tl.load(key_scale_ptr + place, mask=there, other=0.0)[None, :]
        if CUT:
            scored = tl.dot(rest, more, input_precision="ieee") * scale
            if BITS == 8:
                scored = scored * tl.load(value_scale_ptr + place, mask=there, other=0.0)[None, :]
            scores += scored
        if CAP:
            # cap * tanh(scores / cap)
            scores = cap - 2.0 * cap / (tl.exp2(scores * (2.0 * _LOG2E / cap)) + 1.0)
        seen = (
            (at[None, :] <= q_at[:, None]) & (at[None, :] >= first_of_row[:, None]) & there[None, :]
        )
        scores = tl.where(seen, scores * _LOG2E, float("-inf"))
        both = tl.maximum(most, tl.max(scores, axis=1))
        shrink = tl.exp2(most - both)
        p = tl.exp2(scores - both[:, None])
        total = total * shrink[:, None]
        mixed = mixed * shrink[:, None]
        total = tl.dot(p.to(dtype), ones, total, input_precision="ieee")
        if BITS == 8:
            of_values = key_scale_ptr if CUT else value_scale_ptr
            p = p * tl.load(of_values + place, mask=there, other=0.0)[None, :]
        mixed = tl.dot(p.to(dtype), v, mixed, input_precision="ieee")
        most = both
    return most, tl.max(total, axis=1), mixed


@triton.jit
def _finished(most, total, mixed, sinks_ptr, head, inside, SINKS: tl.constexpr):
    """Weighted means; a head's sink is a score of no value."""
    if SINKS:
        sink = tl.load(sinks_ptr + head, mask=inside, other=0.0)
        total += tl.exp2(sink * _LOG2E - most)
    return mixed / tl.maximum(total, 1e-38)[:, None]


@triton.jit
def _attend(
    tile, heads, stretch, q_ptr, out_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, factor_ptr, sinks_ptr, tile_ptr,
    position_ptr, table_ptr, part_ptr, most_ptr, total_ptr, count_ptr, width, q_stride, out_stride, kv_heads, scale,
    cap, window, stretches, programs, CROSS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr, CUT: tl.constexpr, KEY_STRIDE: tl.constexpr, SHARED: tl.constexpr, BLOCK_S: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, APART: tl.constexpr, CHUNKED: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """One program's work: a tile's block of heads, of which ``stretch`` alone if APART; see ``attention_kernel``."""
    head = heads // HEAD_BLOCKS
    sequence = tl.load(tile_ptr + tile * 3)
    first_row = tl.load(tile_ptr + tile * 3 + 1)
    count = tl.load(tile_ptr + tile * 3 + 2)
    m = tl.arange(0, BLOCK_Q * BLOCK_S)
    token, shared = m // BLOCK_S, heads % HEAD_BLOCKS * BLOCK_S + m % BLOCK_S
    inside = (token < count) & (shared < SHARED)
    row = (first_row + token).to(tl.int64)
    q_at = tl.load(position_ptr + row, mask=inside, other=-1)
    earliest = tl.load(position_ptr + tl.maximum(first_row, 0))
    # A tile of no sequence has -1 rows, and no keys.
    latest = tl.where(sequence >= 0, earliest if CROSS else earliest + count - 1, -1)
    first_of_row = tl.zeros_like(q_at)
    start = 0
    if window > 0:
        if CHUNKED:
            first_of_row = q_at // window * window
            start = earliest // window * window
        else:
            first_of_row = q_at - window + 1
            start = tl.maximum(0, earliest - window + 1)
    column = head * SHARED + shared
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    q = tl.load(
        q_ptr + row[:, None] * q_stride + column[:, None] * KEY + d[None, :],
        mask=inside[:, None] & (d[None, :] < (CUT if CUT else KEY)),
        other=0.0,
    )
    if BITS == 4:
        factor = tl.load(factor_ptr + head * KEY + d, mask=d < KEY, other=1.0)
        q = (q.to(tl.float32) * factor[None, :]).to(q.dtype)
    rest = q
    if CUT:
        r = CUT + tl.arange(0, BLOCK_R)
        rest = tl.load(
            q_ptr + row[:, None] * q_stride + column[:, None] * KEY + r[None, :],
            mask=inside[:, None] & (r[None, :] < KEY),
            other=0.0,
        )
    table_row = table_ptr + sequence.to(tl.int64) * width
    most = tl.full((BLOCK_Q * BLOCK_S,), _LOWEST, tl.float32)
    total = tl.zeros((BLOCK_Q * BLOCK_S,), tl.float32)
    mixed = tl.zeros((BLOCK_Q * BLOCK_S, BLOCK_V), tl.float32)
    done = sequence >= 0
    if APART:
        begin = stretch * SPLIT
        done = (begin <= latest) & (begin + SPLIT > start)
        if done:
            low = tl.maximum(begin, start // BLOCK_KV * BLOCK_KV)
            high = tl.minimum(begin + SPLIT, latest + 1)
            most_new, total_new, mixed_new = _stretch(
                q, q_at, low, high, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_row, head, kv_heads,
                scale, cap, first_of_row, rest, KEY, VALUE, BLOCK_D, BLOCK_V, BLOCK_R, CUT, KEY_STRIDE, BLOCK_KV,
                BLOCK_TOKENS, CAP, BITS,
            )  # fmt: skip
            place = (tile * programs + heads) * stretches * (BLOCK_Q * BLOCK_S) + m
            here = place + stretch * (BLOCK_Q * BLOCK_S)
            tl.store(most_ptr + here, most_new)
            tl.store(total_ptr + here, total_new)
            tl.store(part_ptr + here.to(tl.int64)[:, None] * BLOCK_V + dv[None, :], mixed_new)
            tl.debug_barrier()
            first, last = start // SPLIT, latest // SPLIT
            counter = count_ptr + tile * programs + heads
            done = tl.atomic_add(counter, 1, sem="acq_rel") >= last - first
            tl.debug_barrier()
            if done:
                tl.store(counter, 0)
                for four in range(first, last + 1, 4):
                    # Stretches that do not exist change no bit.
                    for i in tl.static_range(4):
                        here = place + (four + i) * (BLOCK_Q * BLOCK_S)
                        there = inside & (m * 0 + four + i <= last)
                        most_new = tl.load(
                            most_ptr + here, mask=there, other=_LOWEST, cache_modifier=".cg"
                        )
                        total_new = tl.load(
                            total_ptr + here, mask=there, other=0.0, cache_modifier=".cg"
                        )
                        part = part_ptr + here.to(tl.int64)[:, None] * BLOCK_V + dv[None, :]
                        mixed_new = tl.load(
                            part, mask=there[:, None], other=0.0, cache_modifier=".cg"
                        )
                        most, total, mixed = merge(
                            most, total, mixed, most_new, total_new, mixed_new
                        )
    else:
        for begin in range(start // SPLIT * SPLIT, latest + 1, SPLIT):
            low = tl.maximum(begin, start // BLOCK_KV * BLOCK_KV)
            high = tl.minimum(begin + SPLIT, latest + 1)
            most_new, total_new, mixed_new = _stretch(
                q, q_at, low, high, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_row, head,
                kv_heads, scale, cap, first_of_row, rest, KEY, VALUE, BLOCK_D, BLOCK_V, BLOCK_R, CUT, KEY_STRIDE,
                BLOCK_KV, BLOCK_TOKENS, CAP, BITS,
            )  # fmt: skip
            most, total, mixed = merge(most, total, mixed, most_new, total_new, mixed_new)
    if done:
        made = _finished(most, total, mixed, sinks_ptr, column, inside, SINKS)
        tl.store(
            out_ptr + row[:, None] * out_stride + column[:, None] * VALUE + dv[None, :],
            made.to(out_ptr.dtype.element_ty),
            mask=inside[:, None] & (dv[None, :] < VALUE),
        )


@triton.jit(do_not_specialize=["width", "long_tiles", "stretches"])
def attention_kernel(
    q_ptr, out_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, factor_ptr, sinks_ptr, long_ptr, short_ptr, position_ptr,
    table_ptr, part_ptr, most_ptr, total_ptr, count_ptr, width, q_stride, out_stride, kv_heads, scale, cap, window,
    long_tiles, stretches,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr, CUT: tl.constexpr, KEY_STRIDE: tl.constexpr, SHARED: tl.constexpr, BLOCK_S: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_KV: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr, APART: tl.constexpr,
    CHUNKED: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, BITS: tl.constexpr, CROSS: tl.constexpr,
):  # fmt: skip
    """See the module. Programs: (tile of many rows, then tile of one row and stretch; block of heads).

    Args:
        long_ptr: LONG: [long_tiles, 3] int32: sequence (-1: none), first row, number of rows up to BLOCK_Q.
        short_ptr: SHORT: likewise, of up to BLOCK_A rows.
        position_ptr: [rows] int32. CROSS: the last row of the encoder output that a row attends to.
        part_ptr, most_ptr, total_ptr: APART: what stretches give, [short tiles, blocks of heads, stretches, BLOCK_A *
            BLOCK_S(, BLOCK_V)].
        count_ptr: APART: [short tiles, blocks of heads] int32, zeros before and after: how many stretches are there.
        width: of a table.
        factor_ptr: BITS 4: [kv_heads, KEY] float32: powers of two by which queries are multiplied, and keys divided.
        BITS: of an element of the cache, or 0 for floats; see ``kv_codes.py``.
        window: 0, or how many keys up to its own a row sees; CHUNKED: those from its last multiple on.
        stretches: of a short tile, of which each has a program of its own; 1 without APART.
        CUT: 0, or the first columns of keys that values are of, one more if their number is odd; the key's others
            are up to BLOCK_R.
        KEY_STRIDE: columns from one key to the next.
        SHARED: heads that share a KV head, in HEAD_BLOCKS blocks of BLOCK_S.
    """
    tile, heads = tl.program_id(0), tl.program_id(1)
    if LONG:
        if tile < long_tiles:
            _attend(
                tile, heads, 0, q_ptr, out_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, factor_ptr,
                sinks_ptr, long_ptr, position_ptr, table_ptr, part_ptr, most_ptr, total_ptr, count_ptr, width, q_stride,
                out_stride, kv_heads, scale, cap, window, 1, 1, CROSS, KEY, VALUE, BLOCK_D, BLOCK_V, BLOCK_R, CUT,
                KEY_STRIDE, SHARED, BLOCK_S, HEAD_BLOCKS, BLOCK_Q, BLOCK_KV, SPLIT, BLOCK_TOKENS, False, CHUNKED,
                CAP, SINKS, BITS,
            )  # fmt: skip
    if SHORT:
        if tile >= long_tiles:
            short = tile - long_tiles
            _attend(
                short // stretches, heads, short % stretches, q_ptr, out_ptr, key_ptr, value_ptr, key_scale_ptr,
                value_scale_ptr, factor_ptr, sinks_ptr, short_ptr, position_ptr, table_ptr, part_ptr, most_ptr, total_ptr,
                count_ptr, width, q_stride, out_stride, kv_heads, scale, cap, window, stretches, tl.num_programs(1),
                CROSS, KEY, VALUE, BLOCK_D, BLOCK_V, BLOCK_R, CUT, KEY_STRIDE, SHARED, BLOCK_S, HEAD_BLOCKS, BLOCK_A,
                BLOCK_KV, SPLIT, BLOCK_TOKENS, APART, CHUNKED, CAP, SINKS, BITS,
            )  # fmt: skip
