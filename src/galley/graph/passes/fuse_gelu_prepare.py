"""Fuse GELU with the rounding of its result for a linear layer: the floats never reach memory."""

from galley.graph.passes.fusion import fuse_prepare
from galley.graph.program import Program


def fuse_gelu_prepare(program: Program) -> Program:
    """``gelu`` and ``prepare`` become one op."""
    return fuse_prepare(program, {"gelu"})
