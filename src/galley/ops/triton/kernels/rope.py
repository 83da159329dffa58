"""``rope`` and the writing of keys and values into their cache, in one launch.

Shapes: q [rows, heads * key_dim], k [rows, kv_heads * key_dim], v [rows, kv_heads * value_dim], turned q as
q, all with a row stride; cos and sin [rows, pairs] float32, scaled; the cache as in ``attention.py``.
Programs: (ROWS rows, block of HEADS heads of q, then of k, then of v). There is no reduction but the greatest
magnitude of a head's key or value, or its range, for caches of 8 and 4 bits.
"""

import triton
import triton.language as tl

from galley.ops.triton.kernels.kv_codes import rounded_to_4_bits, rounded_to_8_bits, stride_of


@triton.jit
def _rotated(
    x_ptr, base, head, d, real, cos_ptr, sin_ptr, row, DIM: tl.constexpr, PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
):  # fmt: skip
    """[M, BLOCK] float32 of heads [M, 1] at columns [1, BLOCK]: rotated, from the rows at ``base`` [M, 1]."""
    inside = real & (d < DIM)
    x = tl.load(x_ptr + base + head * DIM + d, mask=inside, other=0.0).to(tl.float32)
    if PAIRS > 0:
        if ADJACENT:
            pair, other = d // 2, d ^ 1
            first = d % 2 == 0
        else:
            first = d < PAIRS
            pair = tl.where(first, d, d - PAIRS)
            other = tl.where(first, d + PAIRS, d - PAIRS)
        turns = d < 2 * PAIRS
        cos = tl.load(cos_ptr + row * PAIRS + pair, mask=real & turns, other=1.0)
        sin = tl.load(sin_ptr + row * PAIRS + pair, mask=real & turns, other=0.0)
        y = tl.load(x_ptr + base + head * DIM + other, mask=inside & turns, other=0.0).to(
            tl.float32
        )
        x = x * cos + tl.where(first, -y, y) * sin
    return x


@triton.jit
def _keep(x, cache_ptr, scale_ptr, place, d, inside, STRIDE: tl.constexpr, BITS: tl.constexpr):
    """Heads [M, BLOCK] to where tokens and heads [M, 1] have their ``place`` in the cache."""
    written = tl.max(inside.to(tl.int32), axis=1)[:, None] > 0
    if BITS == 8:
        whole, scale = rounded_to_8_bits(x, inside)
        tl.store(cache_ptr + place * STRIDE + d, whole, mask=inside)
        tl.store(scale_ptr + place, scale, mask=written)
    elif BITS == 4:
        both, pair = rounded_to_4_bits(x, inside)
        byte = tl.arange(0, x.shape[1] // 2)[None, :]
        tl.store(cache_ptr + place * STRIDE + byte, both, mask=written & (byte < STRIDE))
        tl.store(scale_ptr + place, pair, mask=written)
    else:
        tl.store(cache_ptr + place * STRIDE + d, x.to(cache_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "width"])
def rope_kernel(
    q_ptr, k_ptr, v_ptr, rotated_ptr, cos_ptr, sin_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, factor_ptr,
    sequence_ptr, position_ptr, table_ptr, rows, q_stride, k_stride, v_stride, rotated_stride, width, heads, kv_heads,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PAIRS: tl.constexpr, ADJACENT: tl.constexpr, QUERIES: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BITS: tl.constexpr, CUT: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
):  # fmt: skip
    """See the module.

    Args:
        sequence_ptr: [rows] int32; -1: no row.
        position_ptr: [rows] int32.
        table_ptr: [sequences, width] int32.
        PAIRS: that are rotated in a head; 0: none is.
        QUERIES: q is turned; KEEP: k and v are written.
        factor_ptr: BITS 4: [kv_heads, KEY] float32: powers of two by which keys are divided.
        BITS: of an element of the cache, or 0 for floats; see ``kv_codes.py``.
        CUT: 0, or of latent attention, which has no programs for v, the columns of a key with the first scale.
        KEY_STRIDE: columns from one key to the next.
    """
    m = tl.arange(0, ROWS * HEADS)[:, None]
    row = (tl.program_id(0) * ROWS + m // HEADS).to(tl.int64)
    sequence = tl.load(sequence_ptr + row, mask=row < rows, other=-1)
    block = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)[None, :]
    if QUERIES:
        blocks = tl.cdiv(heads, HEADS)
        if block < blocks:
            head = block * HEADS + m % HEADS
            real = (sequence >= 0) & (head < heads)
            x = _rotated(
                q_ptr, row * q_stride, head, d, real, cos_ptr, sin_ptr, row, KEY, PAIRS, ADJACENT
            )
            place = rotated_ptr + row * rotated_stride + head * KEY + d
            tl.store(place, x.to(rotated_ptr.dtype.element_ty), mask=real & (d < KEY))
        block -= blocks
    if KEEP:
        kv_blocks = tl.cdiv(kv_heads, HEADS)
        if block >= 0:
            head = (block % kv_blocks) * HEADS + m % HEADS
            real = (sequence >= 0) & (head < kv_heads)
            at = tl.load(position_ptr + row, mask=real, other=0)
            page = tl.load(
                table_ptr + sequence.to(tl.int64) * width + at // BLOCK_TOKENS, mask=real, other=0
            )
            place = (page.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + at % BLOCK_TOKENS
            if block < kv_blocks:
                x = _rotated(
                    k_ptr,
                    row * k_stride,
                    head,
                    d,
                    real,
                    cos_ptr,
                    sin_ptr,
                    row,
                    KEY,
                    PAIRS,
                    ADJACENT,
                )
                # Rounded to the type in which other ops read it.
                x = x.to(k_ptr.dtype.element_ty).to(tl.float32)
                kept = real & (d < KEY)
                if BITS == 4:
                    x = x / tl.load(factor_ptr + head * KEY + d, mask=kept, other=1.0)
                if BITS == 8 and CUT > 0:
                    _keep(x, key_ptr, key_scale_ptr, place, d, kept & (d < CUT), KEY_STRIDE, BITS)
                    _keep(
                        x, key_ptr, value_scale_ptr, place, d, kept & (d >= CUT), KEY_STRIDE, BITS
                    )
                else:
                    _keep(x, key_ptr, key_scale_ptr, place, d, kept, KEY_STRIDE, BITS)
            else:
                dv = tl.arange(0, BLOCK_V)[None, :]
                inside = real & (dv < VALUE)
                v = tl.load(v_ptr + row * v_stride + head * VALUE + dv, mask=inside, other=0.0)
                _keep(
                    v.to(tl.float32),
                    value_ptr,
                    value_scale_ptr,
                    place,
                    dv,
                    inside,
                    stride_of(VALUE, BITS),
                    BITS,
                )
