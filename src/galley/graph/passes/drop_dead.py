"""Drop ops whose results are not read."""

from galley.graph.program import Op, Program


def drop_dead(program: Program) -> Program:
    """Keep only the ops that the logits need, and those without outputs, such as an encoder's ``cross_kv``.

    A decoder's keys and values are not written if no kept attention reads them.
    """
    needed = set(program.ops[-1].outputs)
    kept: list[Op] = []
    for op in reversed(program.ops):
        if needed.intersection(op.outputs) or not op.outputs:
            needed.update(op.inputs)
            kept.append(op)
    return program.with_ops(reversed(kept))
