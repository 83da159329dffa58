"""Makes visible what happens to the inputs of linear layers that do not stay float32."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from galley.graph.program import Op, Program


class RowLayout(NamedTuple):
    """What a row of activations becomes for matrices of one kind and group.

    Attributes:
        inputs: "bfloat16", or "int8", whose groups of columns have a scale and a sum in each row.
        kind: name of the matrices' kind; it decides how far a row is padded.
        group: of an integer kind, columns of weights that share a scale; 0 means all columns.
    """

    inputs: str
    kind: str
    group: int


def quantize_inputs(program: Program, activations: Mapping[str, str]) -> Program:
    """A ``quantize_input`` in front of linear layers whose inputs do not stay float32.

    ``experts`` round theirs themselves, and are told to what. Layers share the rounded rows if they read
    the same buffer and their matrices want the same layout.
    Where any input is rounded, ``encoder_attention`` is no longer exact either.

    Args:
        program: with the kinds of its matrices.
        activations: kind name of a matrix -> what its inputs become: "float32" (they stay as they are),
            "bfloat16" or "int8".
    """
    ops: list[Op] = []
    quantized: dict[tuple[int, RowLayout], int] = {}
    widths, fresh = program.widths(), program.new_buffer()
    for op in program.ops:
        if op.name == "linear":
            kind = program.kind_of(op)
            layout = RowLayout(activations[kind.name], kind.name, kind.group)
            if layout.inputs != "float32":
                (x,) = op.inputs
                if (x, layout) not in quantized:
                    y = quantized[x, layout] = fresh + len(quantized)
                    ops.append(
                        Op("quantize_input", (x,), (y,), (widths[x],), {}, {"layout": layout})
                    )
                op = op.reading({x: quantized[x, layout]})
        elif op.signature.rounds:
            op = dataclasses.replace(op, attrs={**op.attrs, "inputs": dict(activations)})
        ops.append(op)
    return program.with_ops(_inexact(op) if quantized else op for op in ops)


def _inexact(op: Op) -> Op:
    if op.name != "encoder_attention":
        return op
    return dataclasses.replace(op, attrs={**op.attrs, "exact": False})
