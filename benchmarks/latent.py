"""Compare latent attention with expanded keys and values: KV bytes, prefill and decode.

    python -m benchmarks.latent [--layers 4] [--chunks 0,1536,7488] [--context 8000] [--batch 1,8]

Both programs are attention layers alone, in DeepSeek-V2-Lite's shape (arXiv:2405.04434), with random int8
weights. One caches the latent vector, as Galley does for such models; the other caches the keys and values
of all heads. Prefill is the time of a 512-token chunk after the given number of earlier tokens (--chunks).
Operations are counted for Galley's form and for one that expands the keys and values of the whole context
again for each chunk.
"""

import argparse
import os

import msgspec
import numpy as np

from benchmarks.moe import batch_of, seconds_of
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.lab.random_weights import RandomWeights
from galley.machine import available_cores
from galley.models.latent import Latent, describe_latent
from galley.models.rope import Rope
from galley.ops.batch import NO_TOKENS
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import ExecutorOptions, forward
from galley.ops.sampling import SamplingBatch
from galley.types import BLOCK_TOKENS, blocks_for

HIDDEN, HEADS, CHUNK, VOCAB = 2048, 16, 512, 32000
SHAPE = Latent(query=0, width=512, keys=128, rotated=64, values=128, bias=False)
ROPE = Rope(tuple(1e4 ** (-i / 32) for i in range(32)), 1.0, 16384, adjacent=True)
EPS = 1e-6


def program_of(layers: int, *, latent: bool) -> Program:
    """Return a program of stacked attention layers."""

    def expanded(g: Tracer, h: Buffer, name: str) -> Buffer:
        columns = SHAPE.query_columns
        made = g.linear(h, f"{name}.kv_a.weight", SHAPE.width)
        q, k = (
            g.rope(
                g.linear(x, f"{name}.{role}.weight", HEADS * columns),
                head_dim=columns,
                inv_freq=ROPE.inv_freq,
                scale=ROPE.scale,
                adjacent=True,
            )
            for x, role in ((h, "q"), (made, "k"))
        )
        v = g.linear(made, f"{name}.v.weight", HEADS * SHAPE.values)
        mixed = g.attention(q, k, v, key_dim=columns, scale=columns**-0.5, window=0)
        return g.linear(mixed, f"{name}.o.weight", HIDDEN)

    def describe(g: Tracer) -> Buffer:
        x = g.embed("embed", vocab=VOCAB, width=HIDDEN)
        for layer in range(layers):
            h = g.rms_norm(x, f"{layer}.norm", eps=EPS)
            if latent:
                scale = SHAPE.query_columns**-0.5
                y = describe_latent(
                    g, SHAPE, h, str(layer), heads=HEADS, hidden=HIDDEN, rope=ROPE, scale=scale
                )
            else:
                y = expanded(g, h, str(layer))
            x = g.add(x, y)
        return g.linear(g.select_rows(x), "embed", VOCAB)

    return trace(describe, max_positions=ROPE.max_positions)


def operations(before: int) -> tuple[float, float]:
    """Return a layer's operations in a chunk: over the latent, and with keys and values expanded again."""
    pairs = CHUNK * before + CHUNK * (CHUNK + 1) // 2
    own = SHAPE.keys + SHAPE.values
    absorbed = 2.0 * HEADS * (pairs * (2 * SHAPE.width + SHAPE.rotated) + CHUNK * SHAPE.width * own)
    made = (before + CHUNK) * SHAPE.width * own
    return absorbed, 2.0 * HEADS * (pairs * (own + SHAPE.rotated) + made)


def filled(layers: int, tokens: int, *, latent: bool, kv_dtype: str) -> CpuExecutor:
    """Return an executor with this many cached tokens, all copies of one block but in real memory."""
    program = program_of(layers, latent=latent)
    threads = int(os.environ.get("GALLEY_THREADS", available_cores()))
    options = ExecutorOptions(
        dtype="bfloat16", weight_dtype="int8", kv_dtype=kv_dtype, device="cpu", threads=threads
    )
    executor = CpuExecutor(program, RandomWeights(program), options)
    blocks = blocks_for(tokens)
    executor.allocate_kv(blocks)
    forward(executor, batch_of(np.random.default_rng(0), 1, 0, BLOCK_TOKENS))
    copies = [(0, block) for block in range(1, blocks)]
    executor.execute(msgspec.structs.replace(NO_TOKENS, copies=copies), SamplingBatch())
    return executor


def main() -> None:
    """Measure both and print a line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--chunks", default="0,1536,7488")
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kv-dtype", default="bfloat16")
    wanted = parser.parse_args()
    chunks, batches = (
        [int(n) for n in given.split(",")] for given in (wanted.chunks, wanted.batch)
    )
    tokens = max(max(chunks) + CHUNK, max(batches) * BLOCK_TOKENS * blocks_for(wanted.context + 1))
    for latent in (True, False):
        executor = filled(wanted.layers, tokens, latent=latent, kv_dtype=wanted.kv_dtype)
        each = executor.kv_bytes_per_block() / BLOCK_TOKENS / wanted.layers
        print(f"{'latent' if latent else 'expanded'}: {each:,.0f} bytes of KV a token and layer")
        rng = np.random.default_rng(1)
        for before in chunks:
            step = seconds_of(
                executor, [batch_of(rng, 1, before, CHUNK) for _ in range(wanted.repeats + 1)]
            )
            print(
                f"  {CHUNK} tokens behind {before:5}: {1e3 * step / wanted.layers:8.1f} ms a layer"
            )
        for n in batches:
            steps = [batch_of(rng, n, wanted.context, 1) for _ in range(wanted.repeats + 1)]
            step = seconds_of(executor, steps) / wanted.layers
            rate = n * wanted.context * each / step / 1e9
            print(
                f"  decode at {wanted.context:,} tokens, {n:2} sequences: {1e3 * step:8.2f} ms a layer, "
                f"{rate:6.1f} GB/s of keys and values",
                flush=True,
            )
    for before in chunks:
        absorbed, anew = operations(before)
        print(
            f"{CHUNK} tokens behind {before:5}: {absorbed / 1e9:6.1f} G operations a layer over the "
            f"latent, {anew / 1e9:6.1f} with keys and values expanded again ({absorbed / anew:.2f} times)"
        )


if __name__ == "__main__":
    main()
