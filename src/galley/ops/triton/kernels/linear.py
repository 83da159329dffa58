"""``linear``: rows @ matrix^T on tensor cores, the matrix dequantised in registers.

Shapes: x [rows, depth], matrix [outputs, depth], result [rows, outputs]; all row-major, x and the result with
a row stride. A program makes a tile [BLOCK_N outputs, BLOCK_T rows]: the matrix is the left operand, so that
few rows do not waste its tensor core tiles.

How matrices lie (``weights.py`` packs them):

=======  =========================================================================================
dense    [outputs, depth] of the activations' type
int8     [outputs, depth] int8
fp8      [outputs, depth] the bytes of E4M3 floats
int4     [outputs, depth / 2] bytes: of each 2 * HALF columns byte j has column j in its low half and
         column j + HALF in its high half
=======  =========================================================================================

Scales, zero points and minima of groups of columns are [groups, outputs], so that a tile's are contiguous.

Order of summation: columns from 0 up, in steps of the tensor core's own depth; with groups, each BLOCK_K
columns are summed from 0, multiplied with their scale and added. None of it depends on the number of rows:
BLOCK_N, BLOCK_T, warps and stages do, and change no bit.
"""

import triton
import triton.language as tl


_NIBBLES_LOW: tl.constexpr = tl.constexpr("""
{
.reg .b32 q;
and.b32 q, $2, 0x0F0F0F0F;
prmt.b32 $0, q, 0x43434343, 0x4140;
prmt.b32 $1, q, 0x43434343, 0x4342;
}
""")
_NIBBLES_HIGH: tl.constexpr = tl.constexpr("""
{
.reg .b32 q;
shr.b32 q, $2, 4;
and.b32 q, q, 0x0F0F0F0F;
prmt.b32 $0, q, 0x43434343, 0x4140;
prmt.b32 $1, q, 0x43434343, 0x4342;
}
""")


@triton.jit
def _e4m3(codes, dtype: tl.constexpr):
    """Bytes of E4M3 -> their values divided by 256, exact; without a type that old devices lack."""
    wide = codes.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(dtype)


@triton.jit
def _nibbles_bf16(codes, HIGH: tl.constexpr):
    """Low or high halves of bytes -> bfloat16, four at a time: 128 + q is 0x4300 | q."""
    if HIGH:
        made = tl.inline_asm_elementwise(
            _NIBBLES_HIGH, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    else:
        made = tl.inline_asm_elementwise(
            _NIBBLES_LOW, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    return made


@triton.jit
def _int8_bf16(codes):
    """int8 -> bfloat16, four at a time: 2 ** 23 + 128 + q is the float 0x4B000000 | (q ^ 128)."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 q, a, b, c, d;
        .reg .f32 fa, fb, fc, fd;
        xor.b32 q, $2, 0x80808080;
        prmt.b32 a, q, 0x4B000000, 0x7440;
        prmt.b32 b, q, 0x4B000000, 0x7441;
        prmt.b32 c, q, 0x4B000000, 0x7442;
        prmt.b32 d, q, 0x4B000000, 0x7443;
        mov.b32 fa, a;
        mov.b32 fb, b;
        mov.b32 fc, c;
        mov.b32 fd, d;
        sub.f32 fa, fa, 0f4B000080;
        sub.f32 fb, fb, 0f4B000080;
        sub.f32 fc, fc, 0f4B000080;
        sub.f32 fd, fd, 0f4B000080;
        cvt.rn.bf16x2.f32 $0, fb, fa;
        cvt.rn.bf16x2.f32 $1, fd, fc;
        }
        """,
        "=r,=r,r",
        [codes],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _e4m3_bf16(codes):
    """Bytes of E4M3 -> their values divided by 256, four at a time: exponents moved by 2 ** 112."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, s, t, power, nought;
        mov.b32 power, 0x77807780;
        mov.b32 nought, 0x80008000;
        prmt.b32 a, $2, 0, 0x1404;
        prmt.b32 b, $2, 0, 0x3424;
        and.b32 s, a, 0x80008000;
        and.b32 t, a, 0x7F007F00;
        shr.b32 t, t, 4;
        or.b32 a, s, t;
        and.b32 s, b, 0x80008000;
        and.b32 t, b, 0x7F007F00;
        shr.b32 t, t, 4;
        or.b32 b, s, t;
        fma.rn.bf16x2 $0, a, power, nought;
        fma.rn.bf16x2 $1, b, power, nought;
        }
        """,
        "=r,=r,r",
        [codes],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _values(codes, zero, KIND: tl.constexpr, HIGH: tl.constexpr, FAST: tl.constexpr, dtype: tl.constexpr):
    """What codes stand for before they are scaled, exactly; of int4 less the zero points [outputs]."""
    if KIND == "int4":
        if FAST:
            values = _nibbles_bf16(codes, HIGH) - (zero + 128).to(dtype)[:, None]
        elif HIGH:
            values = (codes >> 4).to(dtype) - zero.to(dtype)[:, None]
        else:
            values = (codes & 15).to(dtype) - zero.to(dtype)[:, None]
    elif KIND == "int8":
        values = _int8_bf16(codes) if FAST else codes.to(dtype)
    elif KIND == "fp8":
        values = _e4m3_bf16(codes) if FAST else _e4m3(codes, dtype)
    else:
        values = codes
    return values


@triton.jit
def _half(
    acc, codes, at, x_ptr, k, row, x_stride, rows, depth, group, scale_ptr, zero_ptr, minimum_ptr, n, outputs,
    KIND: tl.constexpr, HIGH: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr,
    ZEROS: tl.constexpr, MINIMA: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """``acc`` plus what WIDTH columns from ``at`` on make of x; they are of one group."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    column = at + k
    if EVEN:
        x = tl.load(x_ptr + row[None, :] * x_stride + column[:, None], mask=row[None, :] < rows, other=0.0)
    else:
        inside = (row[None, :] < rows) & (column[:, None] < depth)
        x = tl.load(x_ptr + row[None, :] * x_stride + column[:, None], mask=inside, other=0.0)
    place = (at // group).to(tl.int64) * outputs + n
    if ZEROS:
        zero = tl.load(zero_ptr + place, mask=n < outputs, other=0).to(tl.float32)
    else:
        zero = tl.full((n.shape[0],), 8.0 if KIND == "int4" and not MINIMA else 0.0, tl.float32)
    w = _values(codes, zero, KIND, HIGH, FAST, dtype)
    if not GROUPED:
        return tl.dot(w, x, acc, input_precision="ieee")
    scale = tl.load(scale_ptr + place, mask=n < outputs, other=0.0).to(tl.float32)
    part = tl.dot(w, x, input_precision="ieee")
    acc += part * scale[:, None]
    if MINIMA:
        minimum = tl.load(minimum_ptr + place, mask=n < outputs, other=0.0).to(tl.float32)
        acc += minimum[:, None] * tl.sum(x.to(tl.float32), axis=0)[None, :]
    return acc


@triton.jit
def _tile(
    x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, rows, outputs, depth, x_stride, group,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, ZEROS: tl.constexpr, MINIMA: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N, BLOCK_T] float32: the products of outputs ``n`` with rows ``row``, scaled.

    ``outputs``: of the whole matrix; places beyond give zeros.
    """
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    if KIND == "int4":
        stored: tl.constexpr = BLOCK_K // 2
    else:
        stored: tl.constexpr = BLOCK_K
    k = tl.arange(0, stored)
    w_row = w_ptr + n[:, None].to(tl.int64) * (tl.cdiv(depth, BLOCK_K) * stored if KIND == "int4" else depth)
    for at in range(0, depth, BLOCK_K):
        if KIND == "int4":
            codes = tl.load(w_row + (at // 2 + k)[None, :], mask=n[:, None] < outputs, other=0)
            acc = _half(
                acc, codes, at, x_ptr, k, row, x_stride, rows, depth, group, scale_ptr, zero_ptr,
                minimum_ptr, n, outputs, KIND, False, FAST, GROUPED, ZEROS, MINIMA, stored, EVEN,
            )  # fmt: skip
            acc = _half(
                acc, codes, at + stored, x_ptr, k, row, x_stride, rows, depth, group, scale_ptr, zero_ptr,
                minimum_ptr, n, outputs, KIND, True, FAST, GROUPED, ZEROS, MINIMA, stored, EVEN,
            )  # fmt: skip
        else:
            inside = n[:, None] < outputs
            if not EVEN:
                inside = inside & ((at + k)[None, :] < depth)
            codes = tl.load(w_row + (at + k)[None, :], mask=inside, other=0)
            acc = _half(
                acc, codes, at, x_ptr, k, row, x_stride, rows, depth, group, scale_ptr, zero_ptr,
                minimum_ptr, n, outputs, KIND, False, FAST, GROUPED, ZEROS, MINIMA, stored, EVEN,
            )  # fmt: skip
    if not GROUPED and KIND != "dense":
        scale = tl.load(scale_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
        acc = acc * scale[:, None]
    return acc


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, out_ptr,
    rows, outputs, depth, x_stride, out_stride, group,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, ZEROS: tl.constexpr, MINIMA: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """See the module.

    Args:
        x_ptr: [rows, depth], rows ``x_stride`` apart.
        w_ptr: the matrix. GATED: gates and ups take turns in it; the result, half as wide, is silu(gate) * up.
        scale_ptr, zero_ptr, minimum_ptr: [groups, outputs of the matrix].
        bias_ptr: [outputs of the matrix] of float32.
        out_ptr: [rows, outputs] or, GATED, [rows, outputs / 2], rows ``out_stride`` apart.
        group: columns that share a scale.
        TOGETHER: so many tiles of outputs go over the same rows before the next: they share x in the cache.
    """
    tiles_n, tiles_t = tl.cdiv(outputs, BLOCK_N), tl.cdiv(rows, BLOCK_T)
    pid = tl.program_id(0)
    band = pid // (TOGETHER * tiles_t)
    first = band * TOGETHER
    width = min(tiles_n - first, TOGETHER)
    tile_n = first + (pid % (TOGETHER * tiles_t)) % width
    tile_t = (pid % (TOGETHER * tiles_t)) // width
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row = (tile_t * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    made = _tile(
        x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, rows, outputs, depth, x_stride, group,
        KIND, FAST, GROUPED, ZEROS, MINIMA, BLOCK_N, BLOCK_T, BLOCK_K, EVEN,
    )  # fmt: skip
    if BIAS:
        made += tl.load(bias_ptr + n, mask=n < outputs, other=0.0)[:, None]
    if GATED:
        gate, up = tl.split(made.reshape(BLOCK_N // 2, 2, BLOCK_T).permute(0, 2, 1))
        gate = gate.to(dtype).to(tl.float32)
        made = gate / (1.0 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)
        n = tile_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        outputs = outputs // 2
    place = out_ptr + row[None, :] * out_stride + n[:, None]
    tl.store(place, made.to(dtype), mask=(row[None, :] < rows) & (n[:, None] < outputs))
