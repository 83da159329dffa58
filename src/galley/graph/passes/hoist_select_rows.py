"""Keep only the rows whose logits are wanted from the last attention on, not from the last layer's end."""

from galley.graph.program import Op, Program
from galley.graph.signatures import SIGNATURES


def hoist_select_rows(program: Program) -> Program:
    """Move ``select_rows`` in front of the per-row ops before it.

    What those read from further up, the residual stream too, is selected instead: a prompt's last
    layer computes its output projection and MLP for one row.
    """
    ops = program.ops
    at = next((i for i, op in enumerate(ops) if op.name == "select_rows"), None)
    if at is None:
        return program
    begin = at
    while begin > 0 and SIGNATURES[ops[begin - 1].name].per_row:
        begin -= 1
    made = {b for op in ops[begin:at] for b in op.outputs}
    read = dict.fromkeys(b for op in ops[begin : at + 1] for b in op.inputs if b not in made)
    fresh, widths = program.new_buffer(), program.widths()
    selected = {b: fresh + i for i, b in enumerate(read)}
    selects = [Op("select_rows", (b,), (s,), (widths[b],), {}, {}) for b, s in selected.items()]
    (x,) = ops[at].inputs
    renamed = {ops[at].output: selected.get(x, x)}
    return program.with_ops(
        [
            *ops[:begin],
            *selects,
            *(op.reading(selected) for op in ops[begin:at]),
            *(op.reading(renamed) for op in ops[at + 1 :]),
        ]
    )
