"""Fuse SwiGLU's product with its rounding for a linear layer: the floats never reach memory."""

from galley.graph.passes.fusion import fuse_prepare
from galley.graph.program import Program


def fuse_silu_prepare(program: Program) -> Program:
    """``silu_mul`` and ``prepare`` become one op."""
    return fuse_prepare(program, {"silu_mul"})
