"""Fuse SwiGLU's and GEGLU's product with its rounding for a linear layer: no floats reach memory."""

from galley.graph.passes.fusion import fuse_quantize
from galley.graph.program import Program


def fuse_silu_quantize(program: Program) -> Program:
    """Fuse ``silu_mul``, ``gelu_tanh_mul`` or ``gelu_mul`` with ``quantize_input``."""
    return fuse_quantize(program, {"silu_mul", "gelu_tanh_mul", "gelu_mul"})
