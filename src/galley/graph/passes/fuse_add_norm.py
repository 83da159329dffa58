"""Fuse the residual stream's additions with the norms that follow: a row is normed while it is warm."""

from galley.graph.passes.fusion import fuse
from galley.graph.program import Op, Program


def fuse_add_norm(program: Program) -> Program:
    """``add`` and ``rms_norm`` of its sum become ``add_rms_norm``, which writes both results."""
    return fuse(program, {"add"}, "rms_norm", _add_rms_norm)


def _add_rms_norm(add: Op, norm: Op) -> Op:
    outputs, widths = (add.output, norm.output), (add.width, norm.width)
    return Op("add_rms_norm", add.inputs, outputs, widths, norm.weights, norm.attrs)
