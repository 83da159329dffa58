"""Fuse norms with the rounding of their result for linear layers: the floats never reach memory."""

from galley.graph.passes.fusion import fuse_quantize
from galley.graph.program import Program


def fuse_norm_quantize(program: Program) -> Program:
    """A norm, or the sum and norm that are one op already, and ``quantize_input`` become one op."""
    return fuse_quantize(program, {"rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"})
