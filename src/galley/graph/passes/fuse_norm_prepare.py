"""Fuse norms with the rounding of their result for linear layers: the floats never reach memory."""

from galley.graph.passes.fusion import fuse_prepare
from galley.graph.program import Program


def fuse_norm_prepare(program: Program) -> Program:
    """A norm, or the sum and norm that are one op already, and ``prepare`` become one op."""
    return fuse_prepare(program, {"rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"})
