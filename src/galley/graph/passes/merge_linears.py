"""Compute linear layers that read the same buffer as one: query, key and value; gate and up.

One wide matrix streams from memory without a pause and its work divides more evenly among threads.
"""

from collections import Counter

from galley.formats.weights import WeightKind
from galley.graph.program import Op, Program


def merge_linears(program: Program) -> Program:
    """Each group becomes one ``linear`` whose outputs are ``columns`` of a wide buffer.

    Each output's sum runs over the same inputs in the same order, so no bit changes. Layers with and
    without bias stay apart, and so do layers whose matrices are of different kinds, or of the same kind
    with other groups. A tensor that is used twice stays alone: it would be kept twice. What an encoder
    computes for the cache alone is not merged: all decoder layers' keys would need room at once.
    """
    uses = Counter(name for op in program.ops for names in op.weights.values() for name in names)
    cached = {b for op in program.ops if op.name == "cross_kv" for b in op.inputs}
    groups: dict[tuple[int, bool, WeightKind | None], list[Op]] = {}
    for op in program.ops:
        if op.name != "linear" or op.output in cached:
            continue
        if all(uses[name] == 1 for name in op.weights["weight"]):
            kind = program.kinds.get(op.weights["weight"][0])
            groups.setdefault((op.inputs[0], "bias" in op.weights, kind), []).append(op)
    merged = {group[0].output: group for group in groups.values() if len(group) > 1}
    parts = {op.output for group in merged.values() for op in group}
    fresh = program.new_buffer()
    ops: list[Op] = []
    for op in program.ops:
        if merged.keys() & set(op.outputs):
            ops += _merge(merged[op.output], fresh + op.output)
        elif not parts & set(op.outputs):
            ops.append(op)
    return program.with_ops(ops)


def _merge(group: list[Op], wide: int) -> list[Op]:
    """The linear layer that writes buffer ``wide``, and the views that stand for its parts."""
    weights = {
        role: tuple(name for op in group for name in op.weights[role]) for role in group[0].weights
    }
    width = sum(op.width for op in group)
    ops = [Op("linear", group[0].inputs, (wide,), (width,), weights, {})]
    start = 0
    for op in group:
        ops.append(Op("columns", (wide,), op.outputs, op.widths, {}, {"start": start}))
        start += op.width
    return ops
