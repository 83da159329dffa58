"""``linear``: rows @ matrix^T on tensor cores, the matrix dequantized in registers.

Shapes: x [rows, depth], matrix [outputs, depth], result [rows, outputs]; all row-major, x and the result with
a row stride. A program makes a tile [BLOCK_N outputs, BLOCK_T rows]: the matrix is the left operand, so that
few rows do not waste its tensor core tiles.

Dense matrices lie as they are, in the activations' type. Codes of fewer bits lie in words of 16 bits, WORDS
of which are a tile's columns: word j of them has columns j, WORDS + j, ... from its lowest bits up, two of
8 bits ("int8", "fp8": E4M3) or four of 4 bits ("int4", "mxfp4": E2M1). Scales, zero points and minima of groups of columns
are [groups, outputs], so that a tile's are contiguous.

A code's value is rounded to the activations' type, as the reference executor keeps it; where a row of the
matrix has one scale, codes are exact and the sum is scaled. So there is one product for all kinds.

Order of summation: a matrix has SPLITS stretches of columns. Each is summed from its first column up, sixteen
columns at a time, in an accumulator of its own, and these are added up in their order. Few rows leave a
stretch to each program, and the last one to end adds them up; for many rows a program does one stretch after
another. All of it depends on the matrix alone: tiles, warps and stages change no bit, and neither does it
matter whether values are dequantized here or by ``dequantize_kernel`` before.
"""

import triton
import triton.language as tl

from galley.ops.triton.kernels.codes import decoded

_TIMES: tl.constexpr = tl.constexpr(
    """
    {
    .reg .b32 nought;
    mov.b32 nought, 0x80008000;
    fma.rn.bf16x2 $0, $1, $2, nought;
    }
    """
)


@triton.jit
def _values(
    words, scale, zero, minimum, PART: tl.constexpr, KIND: tl.constexpr, FAST: tl.constexpr,
    GROUPED: tl.constexpr, EXACT: tl.constexpr, MINIMA: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """[N, W] of the activations' type. EXACT: it holds scales exactly, so products need round once only."""
    values = decoded(words, zero, PART, KIND, FAST, dtype)
    if GROUPED:
        if FAST and EXACT and not MINIMA:
            scales = tl.broadcast_to(scale.to(tl.bfloat16)[:, None], words.shape)
            values = tl.inline_asm_elementwise(
                _TIMES, "=r,r,r", [values, scales], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            scaled = values.to(tl.float32) * scale[:, None]
            if MINIMA:
                scaled += minimum[:, None]
            values = scaled.to(dtype)
    return values


@triton.jit
def _of_group(ptr, at, group, outputs, n, depth, USED: tl.constexpr, other: tl.constexpr):
    """[N] float32 of the group of column ``at``."""
    if USED:
        place = (at // group).to(tl.int64) * outputs + n
        values = tl.load(ptr + place, mask=(n < outputs) & (at + n * 0 < depth), other=other).to(
            tl.float32
        )
    else:
        values = tl.full((n.shape[0],), other, tl.float32)
    return values


@triton.jit
def _rows(x_ptr, row, column, x_stride, rows, depth, EVEN: tl.constexpr):
    """[columns, rows] of x."""
    inside = row[None, :] < rows
    if not EVEN:
        inside = inside & (column[:, None] < depth)
    return tl.load(x_ptr + row[None, :] * x_stride + column[:, None], mask=inside, other=0.0)


@triton.jit
def _packed_tile(
    x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, first, last, rows, outputs, depth, x_stride, group,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, EXACT: tl.constexpr, ZEROS: tl.constexpr,
    MINIMA: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, WORDS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N, BLOCK_T] float32: columns ``first`` to ``last`` of outputs ``n`` times those of rows ``row``."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    PARTS: tl.constexpr = 4 if KIND == "int4" or KIND == "mxfp4" else 2
    NOUGHT: tl.constexpr = 8.0 if KIND == "int4" and not MINIMA else 0.0
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    j = tl.arange(0, WORDS)
    w_row = w_ptr + n[:, None].to(tl.int64) * (tl.cdiv(depth, PARTS * WORDS) * WORDS)
    # Scales are loaded one tile ahead, so that this tile's products hide the latency.
    s0 = _of_group(scale_ptr, first, group, outputs, n, depth, GROUPED, 1.0)
    z0 = _of_group(zero_ptr, first, group, outputs, n, depth, ZEROS, NOUGHT)
    m0 = _of_group(minimum_ptr, first, group, outputs, n, depth, MINIMA, 0.0)
    s1 = _of_group(scale_ptr, first + WORDS, group, outputs, n, depth, GROUPED, 1.0)
    z1 = _of_group(zero_ptr, first + WORDS, group, outputs, n, depth, ZEROS, NOUGHT)
    m1 = _of_group(minimum_ptr, first + WORDS, group, outputs, n, depth, MINIMA, 0.0)
    if PARTS == 4:
        s2 = _of_group(scale_ptr, first + 2 * WORDS, group, outputs, n, depth, GROUPED, 1.0)
        z2 = _of_group(zero_ptr, first + 2 * WORDS, group, outputs, n, depth, ZEROS, NOUGHT)
        m2 = _of_group(minimum_ptr, first + 2 * WORDS, group, outputs, n, depth, MINIMA, 0.0)
        s3 = _of_group(scale_ptr, first + 3 * WORDS, group, outputs, n, depth, GROUPED, 1.0)
        z3 = _of_group(zero_ptr, first + 3 * WORDS, group, outputs, n, depth, ZEROS, NOUGHT)
        m3 = _of_group(minimum_ptr, first + 3 * WORDS, group, outputs, n, depth, MINIMA, 0.0)
    for at in range(first, last, PARTS * WORDS):
        words = tl.load(w_row + (at // PARTS + j)[None, :], mask=n[:, None] < outputs, other=0)
        behind = at + PARTS * WORDS
        next_s0 = _of_group(scale_ptr, behind, group, outputs, n, depth, GROUPED, 1.0)
        next_z0 = _of_group(zero_ptr, behind, group, outputs, n, depth, ZEROS, NOUGHT)
        next_m0 = _of_group(minimum_ptr, behind, group, outputs, n, depth, MINIMA, 0.0)
        next_s1 = _of_group(scale_ptr, behind + WORDS, group, outputs, n, depth, GROUPED, 1.0)
        next_z1 = _of_group(zero_ptr, behind + WORDS, group, outputs, n, depth, ZEROS, NOUGHT)
        next_m1 = _of_group(minimum_ptr, behind + WORDS, group, outputs, n, depth, MINIMA, 0.0)
        if PARTS == 4:
            next_s2 = _of_group(
                scale_ptr, behind + 2 * WORDS, group, outputs, n, depth, GROUPED, 1.0
            )
            next_z2 = _of_group(
                zero_ptr, behind + 2 * WORDS, group, outputs, n, depth, ZEROS, NOUGHT
            )
            next_m2 = _of_group(
                minimum_ptr, behind + 2 * WORDS, group, outputs, n, depth, MINIMA, 0.0
            )
            next_s3 = _of_group(
                scale_ptr, behind + 3 * WORDS, group, outputs, n, depth, GROUPED, 1.0
            )
            next_z3 = _of_group(
                zero_ptr, behind + 3 * WORDS, group, outputs, n, depth, ZEROS, NOUGHT
            )
            next_m3 = _of_group(
                minimum_ptr, behind + 3 * WORDS, group, outputs, n, depth, MINIMA, 0.0
            )
        x = _rows(x_ptr, row, at + j, x_stride, rows, depth, EVEN)
        w = _values(words, s0, z0, m0, 0, KIND, FAST, GROUPED, EXACT, MINIMA, dtype)
        acc = tl.dot(w, x, acc, input_precision="ieee")
        x = _rows(x_ptr, row, at + WORDS + j, x_stride, rows, depth, EVEN)
        w = _values(words, s1, z1, m1, 1, KIND, FAST, GROUPED, EXACT, MINIMA, dtype)
        acc = tl.dot(w, x, acc, input_precision="ieee")
        if PARTS == 4:
            x = _rows(x_ptr, row, at + 2 * WORDS + j, x_stride, rows, depth, EVEN)
            w = _values(words, s2, z2, m2, 2, KIND, FAST, GROUPED, EXACT, MINIMA, dtype)
            acc = tl.dot(w, x, acc, input_precision="ieee")
            x = _rows(x_ptr, row, at + 3 * WORDS + j, x_stride, rows, depth, EVEN)
            w = _values(words, s3, z3, m3, 3, KIND, FAST, GROUPED, EXACT, MINIMA, dtype)
            acc = tl.dot(w, x, acc, input_precision="ieee")
            s2, s3, z2, z3, m2, m3 = next_s2, next_s3, next_z2, next_z3, next_m2, next_m3
        s0, s1, z0, z1, m0, m1 = next_s0, next_s1, next_z0, next_z1, next_m0, next_m1
    return acc


@triton.jit
def _dense_tile(
    x_ptr, w_ptr, n, row, first, last, rows, outputs, depth, x_stride, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The same of a dense matrix."""
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    k = tl.arange(0, BLOCK_K)
    w_row = w_ptr + n[:, None].to(tl.int64) * depth
    for at in range(first, last, BLOCK_K):
        inside = n[:, None] < outputs
        if not EVEN:
            inside = inside & ((at + k)[None, :] < depth)
        w = tl.load(w_row + (at + k)[None, :], mask=inside, other=0)
        x = _rows(x_ptr, row, at + k, x_stride, rows, depth, EVEN)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    return acc


@triton.jit
def tile_sums(
    x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, first, last, rows, outputs, depth, x_stride, group,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, EXACT: tl.constexpr, ZEROS: tl.constexpr,
    MINIMA: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The same of any kind."""
    if KIND == "dense":
        made = _dense_tile(
            x_ptr,
            w_ptr,
            n,
            row,
            first,
            last,
            rows,
            outputs,
            depth,
            x_stride,
            BLOCK_N,
            BLOCK_T,
            BLOCK_K,
            EVEN,
        )
    else:
        made = _packed_tile(
            x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, first, last, rows, outputs, depth, x_stride,
            group, KIND, FAST, GROUPED, EXACT, ZEROS, MINIMA, BLOCK_N, BLOCK_T, BLOCK_K, EVEN,
        )  # fmt: skip
    return made


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, out_ptr, part_ptr, count_ptr,
    rows, outputs, depth, x_stride, out_stride, group, stretch,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, EXACT: tl.constexpr, ZEROS: tl.constexpr,
    MINIMA: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, SPLITS: tl.constexpr,
    APART: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """See the module. Programs: (tile, stretch if APART).

    Args:
        x_ptr: [rows, depth], rows ``x_stride`` apart.
        w_ptr: the matrix. GATED: gates and ups take turns in it; the result, half as wide, is silu(gate) * up.
        scale_ptr, zero_ptr, minimum_ptr: [groups, outputs of the matrix].
        bias_ptr: [outputs of the matrix] of float32.
        out_ptr: [rows, outputs] or, GATED, [rows, outputs / 2], rows ``out_stride`` apart.
        part_ptr: float32 for sums of stretches, [SPLITS if APART, tiles, BLOCK_N, BLOCK_T].
        count_ptr: [tiles] int32, zeros before and after: how many stretches of a tile are there.
        group: columns that share a scale.
        stretch: columns of a stretch.
        SCALED: each output has one scale.
        BLOCK_K: columns of a tile of a dense matrix, words of one of codes.
        TOGETHER: this many tiles of outputs go over the same rows before the next: they share x in the cache.
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
    size: tl.constexpr = BLOCK_N * BLOCK_T
    within = tl.arange(0, BLOCK_N)[:, None] * BLOCK_T + tl.arange(0, BLOCK_T)[None, :]
    part = part_ptr + pid.to(tl.int64) * size + within
    if SPLITS == 1 or APART:
        begin = tl.program_id(1) * stretch
        end = tl.minimum(begin + stretch, depth)
        made = tile_sums(
            x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, begin, end, rows, outputs, depth, x_stride,
            group, KIND, FAST, GROUPED, EXACT, ZEROS, MINIMA, BLOCK_N, BLOCK_T, BLOCK_K, EVEN,
        )  # fmt: skip
    else:
        # Two accumulators of the largest tiles would exceed the registers.
        for split in range(SPLITS):
            begin = split * stretch
            end = tl.minimum(begin + stretch, depth)
            more = tile_sums(
                x_ptr, w_ptr, scale_ptr, zero_ptr, minimum_ptr, n, row, begin, end, rows, outputs, depth,
                x_stride, group, KIND, FAST, GROUPED, EXACT, ZEROS, MINIMA, BLOCK_N, BLOCK_T, BLOCK_K, EVEN,
            )  # fmt: skip
            tl.debug_barrier()
            if split > 0:
                more += tl.load(part)
            tl.store(part, more)
        tl.debug_barrier()
        made = tl.load(part)
    if APART:
        apart = tl.num_programs(0).to(tl.int64) * size
        tl.store(part + tl.program_id(1) * apart, made)
        tl.debug_barrier()
        if tl.atomic_add(count_ptr + pid, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.debug_barrier()
        made = tl.load(part, cache_modifier=".cg")
        for split in range(1, SPLITS):
            made += tl.load(part + split * apart, cache_modifier=".cg")
        tl.store(count_ptr + pid, 0)
    if SCALED:
        made *= tl.load(scale_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
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


@triton.jit
def dequantize_kernel(
    w_ptr, scale_ptr, zero_ptr, minimum_ptr, out_ptr, outputs, depth, group,
    KIND: tl.constexpr, FAST: tl.constexpr, GROUPED: tl.constexpr, EXACT: tl.constexpr, ZEROS: tl.constexpr,
    MINIMA: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Codes as ``linear_kernel`` would multiply them, to a dense matrix [outputs, depth].

    Programs: (BLOCK_N outputs, a tile of WORDS words).
    """
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    PARTS: tl.constexpr = 4 if KIND == "int4" or KIND == "mxfp4" else 2
    NOUGHT: tl.constexpr = 8.0 if KIND == "int4" and not MINIMA else 0.0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.program_id(1) * (PARTS * WORDS)
    j = tl.arange(0, WORDS)
    w_row = w_ptr + n[:, None].to(tl.int64) * (tl.cdiv(depth, PARTS * WORDS) * WORDS)
    words = tl.load(w_row + (at // PARTS + j)[None, :], mask=n[:, None] < outputs, other=0)
    out_row = out_ptr + n[:, None].to(tl.int64) * depth
    for part in tl.static_range(PARTS):
        begins = at + part * WORDS
        scale = _of_group(scale_ptr, begins, group, outputs, n, depth, GROUPED, 1.0)
        zero = _of_group(zero_ptr, begins, group, outputs, n, depth, ZEROS, NOUGHT)
        minimum = _of_group(minimum_ptr, begins, group, outputs, n, depth, MINIMA, 0.0)
        w = _values(words, scale, zero, minimum, part, KIND, FAST, GROUPED, EXACT, MINIMA, dtype)
        column = (begins + j)[None, :]
        tl.store(out_row + column, w, mask=(n[:, None] < outputs) & (column < depth))
