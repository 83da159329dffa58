"""Ops that make each element of the same elements of their inputs: one kernel, compiled for each op.

Shapes: a (and b) [rows, width], result as a, all with a row stride; ``sigmoid_scale``'s b is [rows, 1]. Each
is computed in float32 and rounded once.
"""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """Compute it by the exponential, which is infinite at worst."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def _gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit(do_not_specialize=["rows"])
def elementwise_kernel(
    a_ptr, b_ptr, position_ptr, out_ptr, rows, a_stride, b_stride, out_stride, width, first, second,
    OP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs: (ROWS rows, block of columns). ``first`` and ``second`` are the op's attributes."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < width)
    a = tl.load(a_ptr + row * a_stride + column, mask=inside, other=0.0).to(tl.float32)
    if OP == "scale":
        made = a * first
    elif OP == "soft_cap":
        made = tanh(a / first) * first
    elif OP == "gelu_tanh":
        made = _gelu_tanh(a)
    elif OP == "gelu":
        made = _gelu(a)
    elif OP == "scale_queries_by_position":
        at = tl.load(position_ptr + row, mask=row < rows, other=0).to(tl.float32)
        made = a * (tl.log(1.0 + tl.floor((at + 1.0) / first)) * second + 1.0)
    elif OP == "copy":
        made = a
    elif OP == "sigmoid_scale":
        made = a * _sigmoid(
            tl.load(b_ptr + row * b_stride, mask=row < rows, other=0.0).to(tl.float32)
        )
    else:
        b = tl.load(b_ptr + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
        if OP == "add":
            made = a + b
        elif OP == "silu_mul":
            made = a * _sigmoid(a) * b
        elif OP == "gelu_tanh_mul":
            made = _gelu_tanh(a) * b
        elif OP == "gelu_mul":
            made = _gelu(a) * b
        else:
            tl.static_assert(OP == "sigmoid_mul")
            made = _sigmoid(a) * b
    tl.store(out_ptr + row * out_stride + column, made.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def head_columns_kernel(
    x_ptr, out_ptr, rows, x_stride, out_stride, width, start, size, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``head_columns``: result column j is column ``start`` + j % size of head j // size of x."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < width)
    source = column // size * stride + start + column % size
    x = tl.load(x_ptr + row * x_stride + source, mask=inside, other=0.0)
    tl.store(out_ptr + row * out_stride + column, x, mask=inside)
