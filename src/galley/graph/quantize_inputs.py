"""Make the rounding of linear-layer inputs explicit, as ops of the program."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from galley.graph.program import Op, Program


class RowLayout(NamedTuple):
    """The layout of a row of rounded activations for matrices of one weight type and group.

    Attributes:
        inputs: "bfloat16", or "int8" with a scale and a sum for each group of columns of a row.
        kind: name of the matrices' weight type; it determines the padding of a row.
        group: for an integer type, the columns of weights that share a scale; 0 means all columns.
        step: what all int8 inputs are multiples of; 0: each group of a row has its own scale.
    """

    inputs: str
    kind: str
    group: int
    step: float = 0.0


def quantize_inputs(
    program: Program, activations: Mapping[str, str], steps: Mapping[str, float] | None = None
) -> Program:
    """Add a ``quantize_input`` before linear layers whose inputs do not stay float32.

    Ops such as ``experts`` that round their inputs themselves get the types as an attribute. Layers share
    the rounded rows if they read the same buffer and their matrices need the same layout. If any input is
    rounded, ``encoder_attention`` is not exact either.

    Args:
        program: the program, with the weight types of its matrices.
        activations: name of a weight type -> type that inputs are rounded to: "float32" (not rounded),
            "bfloat16" or "int8".
        steps: matrix of a linear layer -> static scale of its inputs, where there is one. It replaces the
            scales of int8 inputs.
    """
    steps = steps or {}
    ops: list[Op] = []
    quantized: dict[tuple[int, RowLayout], int] = {}
    widths, fresh = program.widths(), program.new_buffer()
    for op in program.ops:
        if op.name == "linear":
            kind = program.kind_of(op)
            inputs = activations[kind.name]
            [step] = {steps.get(name, 0.0) for name in op.weights["weight"]}
            layout = RowLayout(inputs, kind.name, kind.group, step if inputs == "int8" else 0.0)
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
