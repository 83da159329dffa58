"""``embed`` and ``select_rows``: rows gathered by number, those of a table dequantized.

Shapes: numbers [rows] int32, table as the matrices of ``linear.py`` [vocab, width] or buffer [rows, width],
result [rows, width]. No sums.
"""

import triton
import triton.language as tl

from galley.ops.triton.kernels.codes import e2m1


@triton.jit(do_not_specialize=["rows"])
def gather_kernel(
    number_ptr, table_ptr, scale_ptr, zero_ptr, minimum_ptr, out_ptr, rows, table_stride, out_stride, width, outputs, group,
    KIND: tl.constexpr, ZEROS: tl.constexpr, MINIMA: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs: (ROWS rows, block of columns). ``outputs``: rows of the table; scales are [groups, outputs]."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    number = tl.load(number_ptr + row, mask=row < rows, other=0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < width)
    if KIND != "dense":
        PARTS: tl.constexpr = 4 if KIND == "int4" or KIND == "mxfp4" else 2
        part = column % (PARTS * WORDS) // WORDS
        place = column // (PARTS * WORDS) * WORDS + column % WORDS
        word = tl.load(table_ptr + number * table_stride + place, mask=inside, other=0).to(tl.int32)
        code = (word >> (16 // PARTS * part)) & ((1 << (16 // PARTS)) - 1)
        if KIND == "fp8":
            half = ((code & 0x80) << 8) | ((code & 0x7F) << 7)
            value = half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        elif KIND == "mxfp4":
            value = e2m1(code)
        elif KIND == "int8":
            value = ((code << 24) >> 24).to(tl.float32)
        else:
            value = code.to(tl.float32)
    else:
        value = tl.load(table_ptr + number * table_stride + column, mask=inside, other=0).to(
            tl.float32
        )
    if KIND != "dense":
        place = (column // group).to(tl.int64) * outputs + number
        if ZEROS:
            value -= tl.load(zero_ptr + place, mask=inside, other=0).to(tl.float32)
        elif KIND == "int4" and not MINIMA:
            value -= 8.0
        value *= tl.load(scale_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if MINIMA:
            value += tl.load(minimum_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, value.to(out_ptr.dtype.element_ty), mask=inside)
