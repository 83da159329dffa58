"""Fuse the rotation of queries and keys with the writing of keys and values into the cache."""

from galley.graph.program import Op, Program


def fuse_rope_kv(program: Program) -> Program:
    """Fuse ``rope`` of q and of k with ``attention``: rotated keys need no buffer.

    If the two rotations differ, or something else reads their results, nothing changes.
    """
    readers = program.readers()
    ropes = {
        op.output: op for op in program.ops if op.name == "rope" and len(readers[op.output]) == 1
    }
    fused: dict[tuple[int, ...], Op] = {}
    dropped: set[int] = set()
    for op in program.ops:
        if op.name == "attention":
            q, k = (ropes.get(b) for b in op.inputs[:2])
            if q is not None and k is not None and q.attrs == k.attrs:
                fused[op.outputs] = _rope_attention(q, k, op)
                dropped.update(op.inputs[:2])
    kept = (op for op in program.ops if not dropped.intersection(op.outputs))
    return program.with_ops(fused.get(op.outputs, op) for op in kept)


def _rope_attention(q: Op, k: Op, attention: Op) -> Op:
    inputs = (*q.inputs, *k.inputs, attention.inputs[2])
    turns = {"inv_freq": q.attrs["inv_freq"], "rope_scale": q.attrs["scale"]}
    attrs = {**turns, "adjacent": q.attrs["adjacent"], **attention.attrs}
    outputs, widths = (q.output, attention.output), (q.width, attention.width)
    return Op("rope_attention", inputs, outputs, widths, attention.weights, attrs)
