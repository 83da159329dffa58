"""How kernels follow each other: the next one's programs may begin while the last of this one end."""

import triton
import triton.language as tl


@triton.jit
def follow(EARLY: tl.constexpr):
    """EARLY: let the next kernel's programs come, and wait for all that the kernels before wrote."""
    if EARLY:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
