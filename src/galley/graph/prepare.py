"""Makes visible what happens to the inputs of linear layers that are not to stay float32."""

from galley.graph.program import Op, Program


def prepare_inputs(program: Program, activations: str) -> Program:
    """A ``prepare`` in front of each linear layer; layers that read the same buffer share it.

    ``activations`` is what the inputs become; float32 needs none.
    """
    if activations == "float32":
        return program
    ops: list[Op] = []
    prepared: dict[int, int] = {}
    widths = program.widths()
    fresh = program.new_buffer()
    for op in program.ops:
        if op.name == "linear":
            (x,) = op.inputs
            if x not in prepared:
                prepared[x] = fresh + len(prepared)
                ops.append(Op("prepare", (x,), (prepared[x],), (widths[x],), {}, {}))
            op = op.reading(prepared)
        ops.append(op)
    return program.with_ops(ops)
