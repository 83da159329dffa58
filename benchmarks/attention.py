"""Measure one attention layer by context, batch size and KV type, and the machine's read bandwidth.

    python benchmarks/attention.py [--heads 32] [--kv-heads 8] [--head-dim 64] [--threads 2]
        [--contexts 256,1024,4096,16384] [--batches 1,8,32] [--rows 1]
        [--kv-types float32,bfloat16,int8,int4]

``rows`` new tokens of each sequence attend to its whole context: 1 is decode, 512 a chunk of a prompt. Each
figure is the minimum of several runs with cold keys and values (more layers of them than the caches hold).
GB/s counts each byte of KV once. GFLOPS counts two operations per query head, key and element, for the
scores and again for the weighted sums.
"""

import argparse
import os
import time

import numpy as np
import numpy.typing as npt

from galley import _native
from galley.ops.isa import choose_isa
from galley.types import BLOCK_TOKENS

COLD_BYTES = 400 << 20
MOST_BYTES = 4 << 30


def layer_seconds(
    kv_type: str, shape: tuple[int, int, int], context: int, batch: int, rows: int, threads: int
) -> tuple[float, int]:
    """Return the seconds one layer takes and its KV bytes; (0, bytes) if it does not fit in memory."""
    heads, kv_heads, head_dim = shape
    width = heads * head_dim
    table = _native.Packed("float32", 64, width)
    values = np.random.default_rng(0).standard_normal((64, width), dtype=np.float32)
    table.fill([(values.reshape(-1).view(np.uint8), "F32")], threads)
    cpus = sorted(os.sched_getaffinity(0))
    pinned = cpus if len(cpus) == threads else []
    runtime = _native.Runtime(choose_isa(os.environ), threads, pinned)
    program = _native.Program(runtime, 8 * width, width)
    # Keys and values reuse the first heads of the queries: their values do not affect the speed.
    x, y = (0, 4 * width, 0), (4 * width, 4 * width, 0)
    runtime.add_kv_layer(kv_heads, head_dim, head_dim, kv_type)
    blocks = -(-context // BLOCK_TOKENS)
    size = runtime.kv_bytes_per_block() * blocks * batch
    layers = max(2, min(64, COLD_BYTES // size))
    if layers * size > MOST_BYTES:
        return 0.0, size
    program.embed(table, x)
    for layer in range(layers):
        if layer:
            runtime.add_kv_layer(kv_heads, head_dim, head_dim, kv_type)
        program.attention(None, layer, heads, head_dim**-0.5, 0, False, 0.0, x, x, x, y)
    program.select_rows(width, y, (_native.LOGITS, 4 * width, 0))
    runtime.allocate_kv(blocks * batch)

    def step(tables: npt.NDArray[np.int64], first: int, count: int) -> float:
        """Return the rows of each sequence from position ``first``; ``tables`` is [sequences, blocks]."""
        at = np.tile(np.arange(first, first + count), len(tables))
        starts = np.arange(len(tables) + 1)
        out = np.zeros((1, width), np.float32)
        flat, zero = tables.reshape(-1), np.zeros(1, np.int64)
        begin = time.perf_counter()
        program.forward(at % 64, at, starts * count, flat, starts * tables.shape[1], zero, out)
        return time.perf_counter() - begin

    # Treat each block as its own sequence, so filling the cache does not attend to the whole context.
    for first in range(0, blocks * batch, 32):
        step(np.arange(first, min(first + 32, blocks * batch))[:, None], 0, BLOCK_TOKENS)
    tables = np.arange(blocks * batch).reshape(batch, blocks)
    return min(step(tables, context - rows, rows) for _ in range(7)) / layers, size


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--contexts", default="256,1024,4096,16384")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--kv-types", default="float32,bfloat16,int8,int4")
    arguments = parser.parse_args()
    shape = (arguments.heads, arguments.kv_heads, arguments.head_dim)
    print(
        f"isa {choose_isa(os.environ)}, {arguments.threads} threads, heads {shape[0]}, KV heads "
        f"{shape[1]}, head_dim {shape[2]}, rows {arguments.rows}, load {os.getloadavg()[0]:.1f}"
    )
    for kv_type in arguments.kv_types.split(","):
        for context in map(int, arguments.contexts.split(",")):
            for batch in map(int, arguments.batches.split(",")):
                seconds, size = layer_seconds(
                    kv_type, shape, context, batch, arguments.rows, arguments.threads
                )
                if not seconds:
                    continue
                operations = 4 * shape[0] * shape[2] * context * batch * arguments.rows
                print(
                    f"{kv_type:8} context {context:6}  batch {batch:3}  {seconds * 1e3:8.3f} ms  "
                    f"{size / seconds / 1e9:6.1f} GB/s  {operations / seconds / 1e9:7.0f} GFLOPS",
                    flush=True,
                )


if __name__ == "__main__":
    main()
