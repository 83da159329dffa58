"""Tokens drawn from logits as ``galley.ops.draws`` draws them: the same tokens from the same logits.

Shapes: logits [rows, vocab] float32; blocks of BLOCK columns give one partial result each, [draws, blocks].
Greatest values do not depend on the order in which they are found, sums are of whole numbers: no order shows.
"""

import triton
import triton.language as tl


@triton.jit
def greatest_kernel(
    logits_ptr, row_ptr, most_ptr, first_ptr, stride, vocab, blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """The greatest of each block and its first place. Programs: (draw, block). NaN counts as infinity."""
    draw, block = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_ptr + draw).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * stride + column, mask=column < vocab, other=float("-inf"))
    x = tl.where(x != x, float("inf"), x)
    most = tl.max(x, axis=0)
    tl.store(most_ptr + draw * blocks + block, most)
    first = tl.min(tl.where((x == most) & (column < vocab), column, vocab), axis=0)
    tl.store(first_ptr + draw * blocks + block, first)


@triton.jit
def choose_kernel(most_ptr, first_ptr, greatest_ptr, token_ptr, blocks, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Find the greatest logit of each draw and its first place; -1 where it is not finite. Programs: (draw,)."""
    draw = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    most = tl.load(most_ptr + draw * blocks + block, mask=block < blocks, other=float("-inf"))
    first = tl.load(first_ptr + draw * blocks + block, mask=block < blocks, other=2147483647)
    greatest = tl.max(most, axis=0)
    token = tl.min(tl.where(most == greatest, first, 2147483647), axis=0)
    finite = (greatest > float("-inf")) & (greatest < float("inf"))
    tl.store(greatest_ptr + draw, greatest)
    tl.store(token_ptr + draw, tl.where(finite, token, -1))


@triton.jit
def _weights(x, inside, most, scale, reach):
    """The weights of logits relative to the greatest, in whole numbers; see ``galley.ops.draws.weights``."""
    bar = tl.maximum((most.to(tl.float64) + reach).to(tl.float32), -3.4028234663852886e38)
    exponent = tl.maximum((x - most) * scale, -31.0)
    # Round to the nearest integer, ties to even.
    whole = (exponent + 12582912.0) - 12582912.0
    rest = exponent - whole
    power = tl.full(x.shape, 1.54035297e-4, tl.float32)
    power = power * rest + 1.33333579e-3
    power = power * rest + 9.61812865e-3
    power = power * rest + 5.55041097e-2
    power = power * rest + 0.240226507
    power = power * rest + 0.693147182
    power = power * rest + 1.0
    unit = ((whole.to(tl.int32) + 157) << 23).to(tl.float32, bitcast=True)
    return tl.where(inside & (x >= bar), (power * unit).to(tl.int64), 0)


@triton.jit
def _noise(seed, position):
    """The 64 random bits of ``galley.ops.draws.noise``: the first of Philox-4x64-10 (Salmon et al., SC 2011)."""
    zero = seed * 0
    a, b = zero + 0xD2E7470EE14C6C93, zero + 0xCA5A826395121157
    c0, c1, c2, c3 = position.to(tl.uint64) + 1, zero, zero, zero
    k0, k1 = seed, zero
    for _ in tl.static_range(10):
        high0, high2 = tl.umulhi(b, c2) ^ c1 ^ k0, tl.umulhi(a, c0) ^ c3 ^ k1
        c0, c1, c2, c3 = high0, b * c2, high2, a * c0
        k0, k1 = k0 + 0x9E3779B97F4A7C15, k1 + 0xBB67AE8584CAA73B
    return c0


@triton.jit
def sum_kernel(
    logits_ptr, row_ptr, greatest_ptr, scale_ptr, reach_ptr, sum_ptr, stride, vocab, blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights of each block together. Programs: (draw, block)."""
    draw, block = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_ptr + draw).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * stride + column, mask=column < vocab, other=float("-inf"))
    most, scale, reach = (
        tl.load(greatest_ptr + draw),
        tl.load(scale_ptr + draw),
        tl.load(reach_ptr + draw),
    )
    tl.store(
        sum_ptr + draw * blocks + block,
        tl.sum(_weights(x, column < vocab, most, scale, reach), axis=0),
    )


@triton.jit
def draw_kernel(
    logits_ptr, row_ptr, greatest_ptr, scale_ptr, reach_ptr, seed_ptr, position_ptr, sum_ptr, token_ptr, stride, vocab,
    blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The token on which the noise falls, where the draw is not greedy. Programs: (draw,)."""
    draw = tl.program_id(0)
    scale = tl.load(scale_ptr + draw)
    if scale == 0.0:
        return
    if tl.load(token_ptr + draw) < 0:
        return
    row = tl.load(row_ptr + draw).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    sums = tl.load(sum_ptr + draw * blocks + block, mask=block < blocks, other=0)
    total = tl.sum(sums, axis=0)
    noise = _noise(tl.load(seed_ptr + draw), tl.load(position_ptr + draw))
    drawn = tl.umulhi(noise, total.to(tl.uint64)).to(tl.int64)
    behind = tl.cumsum(sums, axis=0)
    chosen = tl.sum((behind <= drawn).to(tl.int32), axis=0)
    before = tl.sum(tl.where(block < chosen, sums, 0), axis=0)
    column = chosen * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * stride + column, mask=column < vocab, other=float("-inf"))
    most, reach = tl.load(greatest_ptr + draw), tl.load(reach_ptr + draw)
    weights = _weights(x, column < vocab, most, scale, reach)
    place = tl.sum((tl.cumsum(weights, axis=0) + before <= drawn).to(tl.int32), axis=0)
    tl.store(token_ptr + draw, chosen * BLOCK + place)


@triton.jit
def _kept(sorted_ptr, draw, column, vocab, most, scale, reach, top_k):
    """The weights of the sorted logits at ``column``, 0 from the ``top_k``-th on if that is not 0."""
    inside = column < tl.where(top_k > 0, top_k, vocab)
    x = tl.load(sorted_ptr + draw.to(tl.int64) * vocab + column, mask=inside, other=float("-inf"))
    return _weights(x, inside, most, scale, reach)


@triton.jit
def sorted_sum_kernel(
    sorted_ptr, greatest_ptr, scale_ptr, reach_ptr, top_k_ptr, sum_ptr, vocab, blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights of each block of sorted logits [draws, vocab] together. Programs: (draw, block)."""
    draw, block = tl.program_id(0), tl.program_id(1)
    weights = _kept(
        sorted_ptr, draw, block * BLOCK + tl.arange(0, BLOCK), vocab, tl.load(greatest_ptr + draw),
        tl.load(scale_ptr + draw), tl.load(reach_ptr + draw), tl.load(top_k_ptr + draw),
    )  # fmt: skip
    tl.store(sum_ptr + draw * blocks + block, tl.sum(weights, axis=0))


@triton.jit
def sorted_draw_kernel(
    sorted_ptr, id_ptr, greatest_ptr, scale_ptr, reach_ptr, seed_ptr, position_ptr, top_k_ptr, top_p_ptr, sum_ptr,
    token_ptr, vocab, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The token on which the noise falls, of a draw by top-k or top-p. Programs: (draw,).

    Args:
        sorted_ptr, id_ptr: [draws, vocab] logits from the greatest down, of equal ones the first token first, and
            their int64 tokens.
        token_ptr: a draw whose candidates ``draw_kernel`` has in their order keeps its token: without top-p, one
            with fewer than ``top_k`` candidates.
    """
    draw = tl.program_id(0)
    scale, token = tl.load(scale_ptr + draw), tl.load(token_ptr + draw)
    top_k, top_p = tl.load(top_k_ptr + draw), tl.load(top_p_ptr + draw)
    if (scale == 0.0) | (token < 0):
        return
    most, reach = tl.load(greatest_ptr + draw), tl.load(reach_ptr + draw)
    if top_p == 1.0:
        if top_k == 0:
            return
        last = tl.load(sorted_ptr + draw.to(tl.int64) * vocab + top_k - 1)
        bar = tl.maximum((most.to(tl.float64) + reach).to(tl.float32), -3.4028234663852886e38)
        if last < bar:
            return
    block, i = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
    sums = tl.load(sum_ptr + draw * blocks + block, mask=block < blocks, other=0)
    behind = tl.cumsum(sums, axis=0)
    total = tl.sum(sums, axis=0)
    if top_p < 1.0:
        share = total.to(tl.float64) * top_p
        mass = share.to(tl.int64)
        mass += (mass.to(tl.float64) < share).to(tl.int64)
        chosen = tl.sum((behind < mass).to(tl.int32), axis=0)
        before = tl.sum(tl.where(block < chosen, sums, 0), axis=0)
        weights = _kept(sorted_ptr, draw, chosen * BLOCK + i, vocab, most, scale, reach, top_k)
        place = tl.sum((tl.cumsum(weights, axis=0) + before < mass).to(tl.int32), axis=0)
        total = before + tl.sum(tl.where(i <= place, weights, 0), axis=0)
    noise = _noise(tl.load(seed_ptr + draw), tl.load(position_ptr + draw))
    drawn = tl.umulhi(noise, total.to(tl.uint64)).to(tl.int64)
    chosen = tl.sum((behind <= drawn).to(tl.int32), axis=0)
    before = tl.sum(tl.where(block < chosen, sums, 0), axis=0)
    weights = _kept(sorted_ptr, draw, chosen * BLOCK + i, vocab, most, scale, reach, top_k)
    place = tl.sum((tl.cumsum(weights, axis=0) + before <= drawn).to(tl.int32), axis=0)
    place += chosen * BLOCK
    tl.store(token_ptr + draw, tl.load(id_ptr + draw.to(tl.int64) * vocab + place).to(tl.int32))
