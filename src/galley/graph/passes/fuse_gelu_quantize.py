"""Fuse GELU with the rounding of its result for a linear layer: the floats never reach memory."""

from galley.graph.passes.fusion import fuse_quantize
from galley.graph.program import Program


def fuse_gelu_quantize(program: Program) -> Program:
    """Fuse ``gelu`` or ``gelu_tanh`` with ``quantize_input``."""
    return fuse_quantize(program, {"gelu", "gelu_tanh"})
