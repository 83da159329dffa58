"""Fuse norms with the rounding of their result for linear layers: the floats never reach memory."""

from galley.graph.passes.fusion import fuse_quantize
from galley.graph.program import Program


def fuse_norm_quantize(program: Program) -> Program:
    """Fuse a norm, or an already fused sum and norm, with ``quantize_input``."""
    return fuse_quantize(program, {"rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"})
