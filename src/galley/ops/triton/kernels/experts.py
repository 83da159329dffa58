"""``route`` and ``experts``: the experts of each row, the rows of each expert, and one product for all of them.

Shapes: logits [rows, experts] float32; routes [rows, 2 * per_token] float32, the numbers of a row's experts and then
their weights, as ``graph/signatures.py`` has them. A choice is one of the ``per_token`` experts of a row: choice
c belongs to row c // per_token. ``order`` [choices] int32 has the choices sorted by expert, those of one expert by
number; ``tiles`` [tiles, 3] int32 has an expert (-1: none) and the stretch of ``order`` that a tile computes.

The matrices of all experts are one matrix [experts * each, depth] in a layout of ``linear.py``. A tile multiplies
up to BLOCK_T choices of one expert, so weights are read once for them. Order of summation: as in ``linear.py``,
with one accumulator; a row's results are added up in the order of its choices. So neither the sorting nor a row's
neighbors change its bits.
"""

import triton
import triton.language as tl

from galley.ops.triton.kernels.linear import tile_sums


@triton.jit
def _greatest(values, column, LAST: tl.constexpr):
    """[ROWS, 1] the columns of the greatest values, of equal ones the first."""
    most = tl.max(values, axis=1)[:, None]
    return tl.minimum(tl.min(tl.where(values == most, column, LAST), axis=1), LAST)[:, None]


@triton.jit
def _best_groups(
    keys, column, inside, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """``keys`` with minus infinity outside of the KEPT groups whose BEST greatest keys have the greatest sum."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    sums = tl.full(keys.shape, float("-inf"), tl.float32)
    group = column // SIZE
    for g in range(GROUPS):
        left = tl.where((group == g) & inside, keys, float("-inf"))
        total = tl.zeros((keys.shape[0], 1), tl.float32)
        for _ in range(BEST):
            best = _greatest(left, column, EXPERTS - 1)
            total += tl.sum(tl.where(column == best, keys, 0.0), axis=1)[:, None]
            left = tl.where(column == best, float("-inf"), left)
        # A group's sum stands in its first column.
        sums = tl.where(column == g * SIZE, total, sums)
    kept = keys * 0.0 + float("-inf")
    for _ in range(KEPT):
        best = _greatest(sums, column, EXPERTS - 1)
        kept = tl.where(group == best // SIZE, keys, kept)
        sums = tl.where(column == best, float("-inf"), sums)
    return kept


@triton.jit(do_not_specialize=["rows"])
def route_kernel(
    logits_ptr, bias_ptr, out_ptr, rows, logits_stride, out_stride, factor,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, BEST: tl.constexpr,
    SIGMOID: tl.constexpr, NORMALIZE: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """``route``. Programs: (ROWS rows,).

    Args:
        bias_ptr: [experts] float32, added to the scores that are compared.
        BLOCK, BLOCK_C: EXPERTS and CHOSEN, the next powers of two.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    real = row < rows
    inside = column < EXPERTS
    place = logits_ptr + row * logits_stride + column
    logits = tl.load(place, mask=real & inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        most = tl.max(tl.where(real, logits, 0.0), axis=1)[:, None]
        scores = tl.exp(logits - most)
        scores = scores / tl.sum(scores, axis=1)[:, None]
    keys = scores
    if BIAS:
        keys += tl.load(bias_ptr + column, mask=inside, other=0.0)
    keys = tl.where(inside, keys, float("-inf"))
    if KEPT < GROUPS:
        keys = _best_groups(keys, column, inside, EXPERTS, GROUPS, KEPT, BEST)
    choice = tl.arange(0, BLOCK_C)[None, :]
    numbers = tl.zeros((ROWS, BLOCK_C), tl.float32)
    weights = tl.zeros((ROWS, BLOCK_C), tl.float32)
    for i in range(CHOSEN):
        best = _greatest(keys, column, EXPERTS - 1)
        score = tl.sum(tl.where(column == best, scores, 0.0), axis=1)[:, None]
        numbers = tl.where(choice == i, best.to(tl.float32), numbers)
        weights = tl.where(choice == i, score, weights)
        keys = tl.where(column == best, float("-inf"), keys)
    if NORMALIZE:
        weights = weights / tl.sum(weights, axis=1)[:, None]
    place = out_ptr + row * out_stride + choice
    tl.store(place, numbers, mask=real & (choice < CHOSEN))
    tl.store(place + CHOSEN, weights * factor, mask=real & (choice < CHOSEN))


@triton.jit
def _numbers(number_ptr, choice, choices, stride, PER_ROW: tl.constexpr):
    """The experts of choices; -1 where there is none."""
    place = number_ptr + choice // PER_ROW * stride + choice % PER_ROW
    return tl.load(place, mask=choice < choices, other=-1).to(tl.int32)


@triton.jit(do_not_specialize=["choices"])
def count_kernel(
    number_ptr, count_ptr, choices, stride, PER_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The number of choices of each expert, [experts] int32. Programs: (expert,).

    Args:
        number_ptr: numbers of experts, of any type: PER_ROW of them at the start of rows ``stride`` apart.
    """
    expert = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, choices, BLOCK):
        number = _numbers(number_ptr, start + tl.arange(0, BLOCK), choices, stride, PER_ROW)
        found += (number == expert).to(tl.int32)
    tl.store(count_ptr + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["choices", "tiles"])
def place_kernel(
    number_ptr, count_ptr, order_ptr, tile_ptr, choices, stride, experts, tiles,
    PER_ROW: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """``order`` and ``tiles`` of the module, from the counts of ``count_kernel``. Programs: (expert,)."""
    expert = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    counts = tl.load(count_ptr + e, mask=e < experts, other=0)
    first = tl.sum(tl.where(e < expert, counts, 0), axis=0)
    own = tl.sum(tl.where(e == expert, counts, 0), axis=0)
    end = first + own
    tile = tl.sum(tl.where(e < expert, (counts + BLOCK_T - 1) // BLOCK_T, 0), axis=0)
    i = tl.arange(0, BLOCK)
    for start in range(0, own, BLOCK_T * BLOCK):
        begin = first + start + i * BLOCK_T
        to = tile_ptr + (tile + start // BLOCK_T + i) * 3
        tl.store(to, i * 0 + expert, mask=begin < end)
        tl.store(to + 1, begin, mask=begin < end)
        tl.store(to + 2, tl.minimum(begin + BLOCK_T, end), mask=begin < end)
    place = first
    for start in range(0, choices, BLOCK):
        mine = _numbers(number_ptr, start + i, choices, stride, PER_ROW) == expert
        to = place + tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(order_ptr + to, start + i, mask=mine)
        place += tl.sum(mine.to(tl.int32), axis=0)
    if expert == experts - 1:
        tile += (own + BLOCK_T - 1) // BLOCK_T
        for start in range(tile, tiles, BLOCK):
            tl.store(tile_ptr + (start + i) * 3, i * 0 - 1, mask=start + i < tiles)


@triton.jit(do_not_specialize=["rows"])
def grouped_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, weight_ptr, out_ptr, order_ptr, tile_ptr,
    rows, outputs, each, depth, x_stride, weight_stride, out_stride, group, alpha, limit,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, EXACT: tl.constexpr, ZEROS: tl.constexpr,
    MINIMA: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, LIMITED: tl.constexpr,
    WEIGHED: tl.constexpr, ADD: tl.constexpr, PER_ROW: tl.constexpr, DIVIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Choices times the matrix of their expert. Programs: (tile, block of outputs).

    Args:
        x_ptr: [rows, depth]; DIVIDE: row c // PER_ROW belongs to choice c, otherwise row c.
        w_ptr: [outputs, depth] as in ``linear_kernel``, ``each`` rows for each expert. GATED: gates and ups take
            turns in them, and the result, half as wide, is silu(gate) * up or, LIMITED, gate * sigmoid(alpha *
            gate) * (up + 1) of values that are clamped to ``limit``.
        bias_ptr: [outputs] float32.
        weight_ptr: WEIGHED: [rows, PER_ROW] float32, rows ``weight_stride`` apart: the products are scaled by them.
        out_ptr: [choices, each], or half as wide; ADD: the product is added to what is there.
    """
    expert = tl.load(tile_ptr + tl.program_id(0) * 3)
    if expert < 0:
        return
    first = tl.load(tile_ptr + tl.program_id(0) * 3 + 1)
    end = tl.load(tile_ptr + tl.program_id(0) * 3 + 2)
    place = first + tl.arange(0, BLOCK_T)
    choice = tl.load(order_ptr + place, mask=place < end, other=0)
    row = choice // PER_ROW if DIVIDE else choice
    row = tl.where(place < end, row, rows).to(tl.int64)
    own = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n = expert * each + own
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    made = tile_sums(
        x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, 0, depth, rows, outputs, depth, x_stride,
        group, KIND, FAST, GROUPED, EXACT, ZEROS, MINIMA, BLOCK_N, BLOCK_T, BLOCK_K, EVEN,
    )  # fmt: skip
    if SCALED:
        made *= tl.load(scale_ptr + n, mask=own < each, other=0.0).to(tl.float32)[:, None]
    if WEIGHED:
        at = weight_ptr + choice // PER_ROW * weight_stride + choice % PER_ROW
        made *= tl.load(at, mask=place < end, other=0.0)[None, :]
    if BIAS:
        made += tl.load(bias_ptr + n, mask=own < each, other=0.0)[:, None]
    if GATED:
        gate, up = tl.split(made.reshape(BLOCK_N // 2, 2, BLOCK_T).permute(0, 2, 1))
        gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
        if LIMITED:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        made = gate / (1.0 + tl.exp(-alpha * gate)) * up
        own = tl.program_id(1) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        each = each // 2
    to = out_ptr + choice.to(tl.int64)[None, :] * out_stride + own[:, None]
    inside = (place < end)[None, :] & (own < each)[:, None]
    if ADD:
        made += tl.load(to, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, made.to(dtype), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def sum_choices_kernel(
    x_ptr, weight_ptr, out_ptr, rows, weight_stride, out_stride, width, PER_ROW: tl.constexpr, WEIGHED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of each row's choices [rows * PER_ROW, width], WEIGHED by [rows, PER_ROW]. Programs: (ROWS rows, block)."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < width)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in range(PER_ROW):
        x = tl.load(x_ptr + (row * PER_ROW + i) * width + column, mask=inside, other=0.0)
        x = x.to(tl.float32)
        if WEIGHED:
            x *= tl.load(weight_ptr + row * weight_stride + i, mask=row < rows, other=0.0)
        total += x
    tl.store(out_ptr + row * out_stride + column, total.to(out_ptr.dtype.element_ty), mask=inside)
