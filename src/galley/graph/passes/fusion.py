"""Shared code of the fusing passes: fuse an op with the op that reads its result."""

import dataclasses
from collections.abc import Callable, Collection

from galley.graph.program import Op, Program


def fuse(
    program: Program, first: Collection[str], second: str, fused: Callable[[Op, Op], Op | None]
) -> Program:
    """Replace pairs of ops, where the second reads the output of the first, in the place of the first.

    Args:
        program: the program to rewrite.
        first: names of ops whose last output the second op reads.
        second: name of the op with that output as its only input.
        fused: returns the fused op, or None to keep the pair. Its outputs are those buffers written by the
            two ops that other ops read.
    """
    readers = program.readers()
    replaced: dict[int, Op] = {}
    dropped: set[int] = set()
    for i, op in enumerate(program.ops):
        if op.name not in first:
            continue
        found = (j for j in readers[op.outputs[-1]] if program.ops[j].name == second)
        j = next(found, None)
        both = None if j is None else fused(op, program.ops[j])
        if j is not None and both is not None:
            replaced[i] = both
            dropped.add(j)
    ops = (replaced.get(i, op) for i, op in enumerate(program.ops) if i not in dropped)
    return program.with_ops(ops)


def fuse_quantize(program: Program, names: Collection[str]) -> Program:
    """Let ops quantize their last output themselves if only one ``quantize_input`` reads it."""
    readers = program.readers()

    def fused(op: Op, quantize: Op) -> Op | None:
        if len(readers[op.outputs[-1]]) > 1:
            return None
        outputs = (*op.outputs[:-1], quantize.output)
        attrs = {**op.attrs, **quantize.attrs}
        return dataclasses.replace(op, name=f"{op.name}_quantize", outputs=outputs, attrs=attrs)

    return fuse(program, names, "quantize_input", fused)
