"""Programs that bring the first columns of the next matrix into the L2 cache, beside those of a small launch.

A launch of few rows between two products leaves most of the memory's bandwidth unused. The product behind it
reads what is already in the cache faster; no bit of any result depends on it.
"""

import triton
import triton.language as tl

_LINE: tl.constexpr = tl.constexpr(128)
_LINES: tl.constexpr = tl.constexpr(128)

_PREFETCH: tl.constexpr = tl.constexpr(
    """
    {
    prefetch.global.L2 [$1];
    mov.u32 $0, 0;
    }
    """
)


@triton.jit
def prefetch(ptr, rows, row_bytes, lines, program, programs):
    """Request the first ``lines`` lines of 128 bytes of each of ``rows`` rows, a share for each program."""
    base = ptr.to(tl.int64)
    every = rows * lines
    for first in range(program * _LINES, every, programs * _LINES):
        line = tl.minimum(first + tl.arange(0, _LINES), every - 1)
        place = (line // lines).to(tl.int64) * row_bytes + line % lines * _LINE
        tl.inline_asm_elementwise(
            _PREFETCH, "=r,l", [base + place], dtype=tl.int32, is_pure=False, pack=1
        )
