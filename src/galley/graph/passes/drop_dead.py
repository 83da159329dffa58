"""Drop ops whose results nobody reads."""

from galley.graph.program import Op, Program


def drop_dead(program: Program) -> Program:
    """Keeps what the logits need, and of an encoder what it leaves in the KV cache.

    A decoder's keys and values that no kept attention reads are not written.
    """
    needed = set(program.ops[-1].outputs)
    kept: list[Op] = []
    for op in reversed(program.ops):
        if needed.intersection(op.outputs) or not op.outputs:
            needed.update(op.inputs)
            kept.append(op)
    return program.with_ops(reversed(kept))
