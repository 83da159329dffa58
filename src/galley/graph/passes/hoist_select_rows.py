"""Keep only the rows whose logits are wanted from the last attention on, not from the last layer's end."""

import dataclasses

from galley.graph.program import Op, Program
from galley.graph.signatures import SIGNATURES


def hoist_select_rows(program: Program) -> Program:
    """Move ``select_rows`` in front of the per-row ops before it.

    What those read from further up, the residual stream too, is selected instead: a prompt's last
    layer computes its output projection and MLP for one row. Rounded rows, which an MLP beside the
    attention shares with it, are made again of the selected ones.
    """
    ops = program.ops
    at = next((i for i, op in enumerate(ops) if op.name == "select_rows"), None)
    if at is None:
        return program
    begin = at
    while begin > 0 and SIGNATURES[ops[begin - 1].name].per_row:
        begin -= 1
    fresh, widths = program.new_buffer(), program.widths()
    tail = _rounding_itself(ops[:begin], ops[begin : at + 1], fresh)
    fresh += len(tail)
    made = {b for op in tail for b in op.outputs}
    read = dict.fromkeys(b for op in tail for b in op.inputs if b not in made)
    selected = {b: fresh + i for i, b in enumerate(read)}
    selects = [Op("select_rows", (b,), (s,), (widths[b],), {}, {}) for b, s in selected.items()]
    (x,) = tail[-1].inputs
    renamed = {ops[at].output: selected.get(x, x)}
    return program.with_ops(
        [
            *ops[:begin],
            *selects,
            *(op.reading(selected) for op in tail[:-1]),
            *(op.reading(renamed) for op in ops[at + 1 :]),
        ]
    )


def _rounding_itself(before: tuple[Op, ...], tail: tuple[Op, ...], fresh: int) -> list[Op]:
    """``tail`` with the ``quantize_input`` in it that it reads of; they write buffers from ``fresh`` on."""
    read = {b for op in tail for b in op.inputs}
    rounds = [op for op in before if op.name == "quantize_input" and op.output in read]
    again = {op.output: fresh + i for i, op in enumerate(rounds)}
    copies = [dataclasses.replace(op, outputs=(again[op.output],)) for op in rounds]
    return [*copies, *(op.reading(again) for op in tail)]
