"""Fuse the residual stream's additions with the following norms: a row is normalized while in cache."""

from galley.graph.passes.fusion import fuse
from galley.graph.program import Op, Program


def fuse_add_norm(program: Program) -> Program:
    """Fuse ``add`` and a norm of its sum into ``add_rms_norm`` or ``add_layer_norm``, with both results."""
    for norm in ("rms_norm", "layer_norm"):
        program = fuse(program, {"add"}, norm, _add_norm)
    return program


def _add_norm(add: Op, norm: Op) -> Op:
    outputs, widths = (add.output, norm.output), (add.width, norm.width)
    return Op(f"add_{norm.name}", add.inputs, outputs, widths, norm.weights, norm.attrs)
