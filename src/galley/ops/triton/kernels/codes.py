"""Decodes codes of 8 and 4 bits in words of 16 bits; see ``linear.py`` for the layout.

bfloat16 is made of two words at a time by instructions on registers; other types go through integers, and the results
are the same.
"""

import triton
import triton.language as tl

_NIBBLES: tl.constexpr = tl.constexpr(
    [
        """
        {
        .reg .b32 q, one;
        mov.b32 one, 0x3F803F80;
        shr.b32 q, $1, %d;
        lop3.b32 q, q, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 $0, q, one, $2;
        }
        """
        % (4 * t)
        for t in range(4)
    ]
)
"""Two of int4 to bfloat16: 128 + q is 0x4300 | q, and the last operand what is subtracted of it, negative."""

_BYTES: tl.constexpr = tl.constexpr(
    [
        """
        {
        .reg .b32 r, a, b, one;
        mov.b32 one, 0xBF80BF80;
        shr.b32 r, $1, %d;
        lop3.b32 a, r, 0x007F007F, 0x43004300, 0xEA;
        lop3.b32 b, r, 0x00800080, 0x43004300, 0xEA;
        fma.rn.bf16x2 $0, b, one, a;
        }
        """
        % (8 * t)
        for t in range(2)
    ]
)
"""Two of int8 to bfloat16: 128 + the low 7 bits, less 128, or 256 below zero."""

_E4M3: tl.constexpr = tl.constexpr(
    [
        """
        {
        .reg .b32 a, b, power, nought;
        mov.b32 power, 0x77807780;
        mov.b32 nought, 0x80008000;
        shl.b32 a, $1, 8;
        and.b32 a, a, 0x80008000;
        shl.b32 b, $1, 4;
        lop3.b32 a, b, 0x07F007F0, a, 0xEA;
        fma.rn.bf16x2 $0, a, power, nought;
        }
        """,
        """
        {
        .reg .b32 a, b, power, nought;
        mov.b32 power, 0x77807780;
        mov.b32 nought, 0x80008000;
        and.b32 a, $1, 0x80008000;
        shr.b32 b, $1, 4;
        lop3.b32 a, b, 0x07F007F0, a, 0xEA;
        fma.rn.bf16x2 $0, a, power, nought;
        }
        """,
    ]
)
"""Two of E4M3 to bfloat16, divided by 256: exponents are moved by 2 ** 112."""

_E2M1: tl.constexpr = tl.constexpr(
    [
        """
        {
        .reg .b32 a, b, power, nought;
        mov.b32 power, 0x7E807E80;
        mov.b32 nought, 0x80008000;
        shl.b32 a, $1, %d;
        and.b32 a, a, 0x80008000;
        %s b, $1, %d;
        lop3.b32 a, b, 0x01C001C0, a, 0xEA;
        fma.rn.bf16x2 $0, a, power, nought;
        }
        """
        % (12 - 4 * t, "shl.b32" if t < 2 else "shr.b32", abs(6 - 4 * t))
        for t in range(4)
    ]
)
"""Two of E2M1 to bfloat16: exponents are moved by 2 ** 126."""


@triton.jit
def e2m1(code):
    """Return float32 of E2M1 codes (int32, 0 to 15): float16's exponent is moved by 2 ** 14."""
    half = ((code & 8) << 12) | ((code & 7) << 9)
    return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def decoded(
    words, zero, PART: tl.constexpr, KIND: tl.constexpr, FAST: tl.constexpr, dtype: tl.constexpr
):
    """Return the exact values of part PART of the words [N, W], not scaled yet; ``zero``: [N] float32."""
    if KIND == "int4":
        if FAST:
            less = tl.broadcast_to((-128.0 - zero).to(tl.bfloat16)[:, None], words.shape)
            values = tl.inline_asm_elementwise(
                _NIBBLES[PART], "=r,r,r", [words, less], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            whole = (words.to(tl.int32) >> (4 * PART)) & 15
            values = (whole.to(tl.float32) - zero[:, None]).to(dtype)
    elif KIND == "mxfp4":
        if FAST:
            values = tl.inline_asm_elementwise(
                _E2M1[PART], "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            values = e2m1((words.to(tl.int32) >> (4 * PART)) & 15).to(dtype)
    elif KIND == "int8":
        if FAST:
            values = tl.inline_asm_elementwise(
                _BYTES[PART], "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            values = ((words.to(tl.int32) << (24 - 8 * PART)) >> 24).to(tl.float32).to(dtype)
    else:
        if FAST:
            values = tl.inline_asm_elementwise(
                _E4M3[PART], "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            byte = (words.to(tl.int32) >> (8 * PART)) & 255
            half = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
            values = half.to(tl.uint16).to(tl.float16, bitcast=True).to(dtype)
    return values
