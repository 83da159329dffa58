"""Merge linear layers that read the same buffer into one: query, key and value; gate and up.

One wide matrix streams from memory without a pause, and its work is divided more evenly among threads.
"""

from collections import Counter
from collections.abc import Mapping

from galley.formats.weights import WeightKind
from galley.graph.program import Op, Program


def merge_linears(program: Program) -> Program:
    """Merge each group into one ``linear``; the former outputs become ``columns`` of a wide buffer.

    Their ``lora`` ops, if any, are merged into one on that buffer. Each output is summed over the same
    inputs in the same order, so no bit changes. Layers with and without bias are not merged with each
    other, nor are layers whose matrices have different weight types or groups. A tensor that is used twice
    is not merged, because it would be stored twice. Outputs that an encoder only writes to the cache are
    not merged, because the keys of all decoder layers would be in memory at the same time.
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
    """Return the linear layer that writes buffer ``wide``, and the views of its parts.

    ``loras`` has ``lora`` ops by the buffer that they add to; the merged one writes buffer ``wide + 1``.
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
