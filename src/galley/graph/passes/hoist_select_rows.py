"""Select the rows whose logits are requested right after the last attention, not after the last layer."""

import dataclasses

from galley.graph.program import Op, Program
from galley.graph.signatures import SIGNATURES


def hoist_select_rows(program: Program) -> Program:
    """Move ``select_rows`` before the per-row ops that precede it.

    All buffers that those ops read, including the residual stream, are selected instead: the last layer
    computes its output projection and MLP for only one row of a prompt. If an MLP parallel to the attention
    shares rounded rows with it, the selected rows are rounded again.
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
    """Return ``tail`` after copies of the ``quantize_input`` ops it reads, which write ``fresh`` and on."""
    read = {b for op in tail for b in op.inputs}
    rounds = [op for op in before if op.name == "quantize_input" and op.output in read]
    again = {op.output: fresh + i for i, op in enumerate(rounds)}
    copies = [dataclasses.replace(op, outputs=(again[op.output],)) for op in rounds]
    return [*copies, *(op.reading(again) for op in tail)]
