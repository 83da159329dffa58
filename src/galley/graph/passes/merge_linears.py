"""Compute linear layers that read the same buffer as one: query, key and value; gate and up.

One wide matrix streams from memory without a pause and its work divides more evenly among threads.
"""

from collections import Counter
from collections.abc import Mapping

from galley.formats.weights import WeightKind
from galley.graph.program import Op, Program


def merge_linears(program: Program) -> Program:
    """Each group becomes one ``linear`` whose outputs are ``columns`` of a wide buffer.

    Their ``lora`` ops, if they have any, become one over that buffer. Each output's sum runs over the same
    inputs in the same order, so no bit changes. Layers with and without bias stay apart, and so do layers
    whose matrices are of different kinds, or of the same kind with other groups. A tensor that is used
    twice stays alone: it would be kept twice. What an encoder computes for the cache alone is not merged:
    all decoder layers' keys would need room at once.
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
    loras = {op.inputs[0]: op for op in program.ops if op.name == "lora"}
    merged = {group[0].output: group for group in groups.values() if len(group) > 1}
    parts = {op.output for group in merged.values() for op in group}
    parts |= {loras[b].output for b in parts if b in loras}
    fresh = program.new_buffer()
    ops: list[Op] = []
    for op in program.ops:
        if merged.keys() & set(op.outputs):
            ops += _merge(merged[op.output], fresh + 2 * op.output, loras)
        elif not parts & set(op.outputs):
            ops.append(op)
    return program.with_ops(ops)


def _merge(group: list[Op], wide: int, loras: Mapping[int, Op]) -> list[Op]:
    """The linear layer that writes buffer ``wide``, and the views that stand for its parts.

    ``loras``: by the buffer that they add to; one writes the buffer behind ``wide``.
    """
    weights = {
        role: tuple(name for op in group for name in op.weights[role]) for role in group[0].weights
    }
    width = sum(op.width for op in group)
    ops = [Op("linear", group[0].inputs, (wide,), (width,), weights, {})]
    starts = [sum(op.width for op in group[:i]) for i in range(len(group))]
    found = [
        (start, loras[op.output])
        for start, op in zip(starts, group, strict=True)
        if op.output in loras
    ]
    if found:
        modules = tuple(
            (number, start + at, columns)
            for start, lora in found
            for number, at, columns in lora.attrs["modules"]
        )
        attrs = {**found[0][1].attrs, "modules": modules}
        ops.append(Op("lora", (wide, found[0][1].inputs[1]), (wide + 1,), (width,), {}, attrs))
        wide += 1
    for start, op in zip(starts, group, strict=True):
        outputs = loras[op.output].outputs if op.output in loras else op.outputs
        ops.append(Op("columns", (wide,), outputs, op.widths, {}, {"start": start}))
    return ops
