"""Makes room in a program for LoRA adapters (arXiv:2106.09685): each row has its own, or none."""

import dataclasses

from galley.graph.program import Op, Program


def with_adapters(program: Program) -> Program:
    """A ``lora`` behind each linear layer but the output layer.

    Adapters' products take the layer's input as it is, also where that is rounded for the layer itself.

    Args:
        program: as traced, of a text model.
    """
    fresh = program.new_buffer()
    renamed: dict[int, int] = {}
    ops: list[Op] = []
    adapted: list[str] = []
    for op in program.ops:
        if op.name == "select_rows":
            break  # what follows makes logits
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
