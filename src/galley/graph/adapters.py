"""Add LoRA adapters (arXiv:2106.09685) to a program: each row has its own adapter, or none."""

import dataclasses

from galley.graph.program import Op, Program


def with_adapters(program: Program) -> Program:
    """Add a ``lora`` op after each linear layer except the output layer.

    Adapters multiply the unrounded input of the layer, even if it is rounded for the layer itself.

    Args:
        program: the traced program of a text model.
    """
    fresh = program.new_buffer()
    renamed: dict[int, int] = {}
    ops: list[Op] = []
    adapted: list[str] = []
    for op in program.ops:
        if op.name == "select_rows":
            break  # the ops from here on compute logits
        op = op.reading(renamed)
        ops.append(op)
        if op.name == "linear":
            [x], y, z = op.inputs, op.output, fresh + op.output
            module = (len(adapted), 0, op.width)
            adapted.append(op.tensor("weight"))
            renamed[y] = z
            attrs = {"modules": (module,), "depth": program.shapes[op.tensor("weight")][1]}
            ops.append(Op("lora", (y, x), (z,), (op.width,), {}, attrs))
    ops += (op.reading(renamed) for op in program.ops[len(ops) - len(adapted) :])
    return dataclasses.replace(program.with_ops(ops), adapted=tuple(adapted))
