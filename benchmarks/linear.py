"""Measure one linear layer by weight format and number of rows, and the machine's read bandwidth.

    python benchmarks/linear.py [--outputs 8192] [--depth 2048] [--threads 2] [--rows 1,4,8,32,512]

Each figure is the minimum of several runs with cold weights (more than the caches hold), with one thread
its CPU time, which other programs disturb less. GB/s counts packed weight bytes, GOPS two operations per
weight and row.
"""

import argparse
import os
import time
from dataclasses import replace

import numpy as np

from galley import _native
from galley.formats.gguf_blocks import BLOCK_KINDS
from galley.formats.weights import SUPER, DenseWeight, IntWeight, Nested, Weight
from galley.ops.isa import choose_isa
from galley.ops.kinds import choose_activations
from galley.ops.packing import pack
from galley.quant.rtn import rounded_kind

COLD_BYTES = 400 << 20
KINDS = (
    *("int4", "int4:32", "int8", "bf16", "f16", "float32", "int4/bfloat16", "int8/bfloat16"),
    *("int4/float32", "int8/float32", "bf16/float32"),
    *("Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0"),
)
"""Weights, and after the slash the type of their inputs, unless it is the default.

After a colon: columns that share a scale. Names in capitals are GGUF's types, kept as the integers that
they are."""


def integers(block_type: str, outputs: int, depth: int) -> IntWeight:
    """Return random integers as packed from a GGUF type, with scales in a model's usual range."""
    block = BLOCK_KINDS[block_type]
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (outputs, depth), np.int8 if block.bits == 8 else np.uint8)
    shape = outputs, depth // block.group
    made = ("w", block.bits, q, block.group)
    if block.scale_type != "F16xI8":
        floats = np.full(shape, 1 / 128, np.float32)
        return IntWeight(*made, floats, None, block.scale_type, -floats if block.minima else None)
    units = np.full((outputs, -(-depth // SUPER)), 1 / 1024, np.float16)
    scales = Nested(rng.integers(1, 64, shape, np.int8), units)
    minima = Nested(rng.integers(1, 64, shape, np.int8), -units) if block.minima else None
    least = None if minima is None else minima.floats(block.group)
    scale_type, both = block.scale_type, (scales, minima)
    return IntWeight(*made, scales.floats(block.group), None, scale_type, least, both)


def layer_seconds(
    kind: str, outputs: int, depth: int, rows: int, threads: int
) -> tuple[float, int]:
    """Return the seconds for one layer of a stack larger than the caches, and the layer's bytes."""
    kind, _, wanted = kind.partition("/")
    isa = choose_isa(os.environ)
    values = np.random.default_rng(0).standard_normal((outputs, depth), dtype=np.float32)
    weight = DenseWeight("w", "F32", values.shape, values.reshape(-1).view(np.uint8))
    if kind in BLOCK_KINDS:
        made: Weight = integers(kind, outputs, depth)
        rounded = made.kind
    else:
        kind, _, group = kind.partition(":")
        made, rounded = weight, rounded_kind(kind, depth)
        if group:
            rounded = replace(rounded, group=int(group))
    activations = choose_activations(rounded.name, wanted or "auto", isa)
    first = pack([made], rounded)
    copies = min(7, COLD_BYTES // first.bytes)
    packed = [first, *(pack([made], rounded) for _ in range(copies))]
    table = _native.Packed("float32", outputs, depth)
    table.fill([(weight.data, "F32")], threads)
    layout = None
    if activations != "float32":
        layout = _native.InputLayout(rounded.name, depth, rounded.group, activations)
    x = (0, 4 * depth, 0)
    source = (x[1], layout.row_bytes, 0) if layout else x
    y = (x[1] + (layout.row_bytes if layout else 0), 4 * outputs, 0)
    cpus = sorted(os.sched_getaffinity(0))
    pinned = cpus if len(cpus) == threads else []
    runtime = _native.Runtime(isa, threads, pinned)
    program = _native.Program(runtime, y[0] + y[1], outputs)
    program.embed(table, x)
    if layout:
        program.quantize_input(layout, x, source)
    repeats = max(len(packed), 24 if rows == 1 else 8)
    for i in range(repeats):
        program.linear(packed[i % len(packed)], None, layout, source, y)
    program.select_rows(outputs, y, (_native.LOGITS, 4 * outputs, 0))
    at, out = np.arange(rows), np.zeros((1, outputs), np.float32)
    no_cache = at[:0], np.zeros(1, np.int64)
    arguments = (at, at, np.array([0, rows]), *no_cache, at[-1:], out)
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = float("inf")
    for _ in range(7):
        begin = clock()
        program.forward(*arguments)
        best = min(best, clock() - begin)
    return best / repeats, first.bytes


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outputs", type=int, default=8192)
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", default="1,2,4,6,8,16,32,64,512")
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    print(
        f"isa {choose_isa(os.environ)}, {arguments.threads} threads, "
        f"layer {arguments.outputs} x {arguments.depth}, load {os.getloadavg()[0]:.1f}"
    )
    for kind in arguments.kinds.split(","):
        for rows in map(int, arguments.rows.split(",")):
            seconds, size = layer_seconds(
                kind, arguments.outputs, arguments.depth, rows, arguments.threads
            )
            operations = 2 * arguments.outputs * arguments.depth * rows
            print(
                f"{kind:12} rows {rows:4}  {seconds * 1e3:8.3f} ms  {size / seconds / 1e9:6.1f} GB/s"
                f"  {operations / seconds / 1e9:7.0f} GOPS"
            )


if __name__ == "__main__":
    main()
