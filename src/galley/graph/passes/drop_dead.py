"""Drop ops whose results nobody reads."""

from galley.graph.program import Op, Program


def drop_dead(program: Program) -> Program:
    """Keeps what the logits need. Keys and values that no kept attention reads are not written."""
    needed = {program.logits}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    return program.with_ops(reversed(kept))
