"""``rms_norm``, ``layer_norm`` and the sums before them: each row's groups of columns to one size.

Shapes: x (and y) [rows, groups * width], result and sum as x, all with a row stride; weight and bias float32,
[width] shared by all groups (``rms_norm``) or [groups * width] (``layer_norm``). A program has ROWS rows
and GROUPS groups of each, each in whole: the order of summation follows from the width.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def norm_kernel(
    x_ptr, y_ptr, sum_ptr, weight_ptr, bias_ptr, out_ptr, rows, x_stride, y_stride, sum_stride, out_stride, groups, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, ADD: tl.constexpr, MEAN: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Programs: (ROWS rows, block of groups).

    Args:
        y_ptr, sum_ptr: ADD: x + y is normed, and stored.
        groups: in a row.
        WIDTH: columns of a group; BLOCK: the next power of two.
        MEAN: it is subtracted (``layer_norm``).
        APART: groups have weights of their own.
    """
    m = tl.arange(0, ROWS * GROUPS)[:, None]
    row = (tl.program_id(0) * ROWS + m // GROUPS).to(tl.int64)
    group = tl.program_id(1) * GROUPS + m % GROUPS
    within = tl.arange(0, BLOCK)[None, :]
    column = group * WIDTH + within
    inside = (row < rows) & (group < groups) & (within < WIDTH)
    if WEIGHT:
        weight = tl.load(weight_ptr + (column if APART else within), mask=inside, other=0.0)
    if BIAS:
        bias = tl.load(bias_ptr + (column if APART else within), mask=inside, other=0.0)
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0).to(tl.float32)
        whole = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * sum_stride + column, whole, mask=inside)
        # The norm reads the rounded sum, which is what other ops read.
        x = whole.to(tl.float32)
    if MEAN:
        x = tl.where(inside, x - (tl.sum(x, axis=1) / WIDTH)[:, None], 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)[:, None]
    if WEIGHT:
        x = x * weight
    if BIAS:
        x = x + bias
    tl.store(out_ptr + row * out_stride + column, x.to(out_ptr.dtype.element_ty), mask=inside)
