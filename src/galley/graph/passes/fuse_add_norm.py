"""Fuse the residual stream's additions with the norms that follow: a row is normed while it is warm."""

from galley.graph.passes.fusion import fuse
from galley.graph.program import Op, Program


def fuse_add_norm(program: Program) -> Program:
    """``add`` and a norm of its sum become ``add_rms_norm`` or ``add_layer_norm``: one op, both results."""
    for norm in ("rms_norm", "layer_norm"):
        program = fuse(program, {"add"}, norm, _add_norm)
    return program


def _add_norm(add: Op, norm: Op) -> Op:
    outputs, widths = (add.output, norm.output), (add.width, norm.width)
    return Op(f"add_{norm.name}", add.inputs, outputs, widths, norm.weights, norm.attrs)
