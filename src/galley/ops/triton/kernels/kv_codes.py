"""Keys and values in fewer bits: how caches of 8 and 4 bits are written and read.

A token's key or value of a head has its own scale. With 8 bits an element is an integer from -127 to 127, and its
scale a float32. With 4 bits it is low + scale * n, n from 0 to 15; two columns share a byte, the even one in its low
half, and an int32 holds the two numbers as bfloat16, the scale in its upper half: ``ops/reference_kv.py``.
"""

import triton
import triton.language as tl

_LEAST_SPAN: tl.constexpr = tl.constexpr(1e-30)


@triton.jit
def stride_of(SIZE: tl.constexpr, BITS: tl.constexpr):
    """Elements of the cache from one key or value of SIZE columns to the next."""
    return (SIZE + 1) // 2 if BITS == 4 else SIZE


@triton.jit
def unpacked(both, pair, dtype: tl.constexpr):
    """[tokens, 2 * M] of bytes [tokens, M] and the pairs [tokens] of their tokens."""
    low = (pair << 16).to(tl.float32, bitcast=True)[:, None]
    step = (pair & -65536).to(tl.float32, bitcast=True)[:, None]
    even = (low + step * (both & 15).to(tl.float32)).to(dtype)
    odd = (low + step * (both >> 4).to(tl.float32)).to(dtype)
    return tl.join(even, odd).reshape(both.shape[0], 2 * both.shape[1])


@triton.jit
def rounded_to_8_bits(x, inside):
    """(integers, scales [M, 1]) of heads [M, BLOCK]."""
    most = tl.maximum(tl.max(tl.abs(tl.where(inside, x, 0.0)), axis=1), _LEAST_SPAN)[:, None]
    return _whole(x * (127.0 / most)).to(tl.int8), most / 127.0


@triton.jit
def rounded_to_4_bits(x, inside):
    """(bytes [M, BLOCK / 2], pairs [M, 1]) of heads [M, BLOCK]."""
    low = _below(tl.min(tl.where(inside, x, float("inf")), axis=1))[:, None]
    span = tl.max(tl.where(inside, x, float("-inf")), axis=1)[:, None] - low
    scale = -_below(-(span / 15.0))
    equal = span <= _LEAST_SPAN
    steps = (x - low) * (1.0 / tl.where(equal, 1.0, scale))
    steps = tl.where(inside & (span > _LEAST_SPAN), steps, 0.0)
    whole = tl.minimum(tl.maximum(_whole(steps), 0.0), 15.0).to(tl.int32)
    even, odd = tl.split(whole.reshape(x.shape[0], x.shape[1] // 2, 2))
    scale = tl.where(equal, 0.0, scale)
    pair = scale.to(tl.int32, bitcast=True) | ((low.to(tl.int32, bitcast=True) >> 16) & 65535)
    return (even | (odd << 4)).to(tl.uint8), pair


@triton.jit
def _whole(x):
    """Round to nearest, ties to even, like torch."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _below(x):
    """The greatest bfloat16 that is at most x."""
    cut = x.to(tl.int32, bitcast=True) & -65536
    return tl.where(cut.to(tl.float32, bitcast=True) > x, cut + 65536, cut).to(
        tl.float32, bitcast=True
    )
