"""Mixtures of experts, beside dense models with as many active parameters: prefill and decode.

    python -m benchmarks.moe [--shape NAME] [--kind int4] [--batch 1,4,8,32] [--repeats 5] [--results FILE]

Weights are random and packed without a checkpoint. Each sequence has random tokens, so routes are about
even: a step of N sequences reads the experts that any of them chose. GB/s counts those.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from scripts.benchmarks_page import Figure

from benchmarks.results_file import put
from galley.formats.values import bf16_bits
from galley.formats.weights import DENSE_KINDS, DenseWeight, TensorInfo, Weights
from galley.graph.program import Program
from galley.machine import available_cores
from galley.models.registry import build_program
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Batch, ExecutorOptions
from galley.ops.isa import choose_isa
from galley.ops.sampling import SamplingBatch
from galley.types import blocks_for

COMMON: Final[dict[str, Any]] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "8 of 0.35 billion, top-2": {
        "model_type": "mixtral",
        "intermediate_size": 7168,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "64 of 0.05 billion, top-8": {
        "model_type": "olmoe",
        "intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
    "dense with as many active": {"model_type": "llama", "intermediate_size": 14336},
    "dense with as many active as 64 of 0.05": {"model_type": "llama", "intermediate_size": 8192},
}
PROMPT, CONTEXT, STEPS = 512, 64, 24


class RandomWeights(Weights):
    """Tensors of a program, bfloat16: each a piece of the same noise, which is made once."""

    def __init__(self, program: Program) -> None:
        self._shapes = dict(program.shapes)
        rng = np.random.default_rng(0)
        largest = max(int(np.prod(shape)) for shape in self._shapes.values())
        noise = rng.standard_normal(largest, dtype=np.float32) / np.float32(32)
        self._noise = bf16_bits(noise).view(np.uint8)

    def info(self, name: str) -> TensorInfo:
        """See :class:`Weights`."""
        return TensorInfo(self._shapes[name], DENSE_KINDS["BF16"])

    def __getitem__(self, name: str) -> DenseWeight:
        shape = self._shapes[name]
        return DenseWeight(name, "BF16", shape, self._noise[: 2 * int(np.prod(shape))])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def made(shape: str, kind: str, threads: int) -> tuple[CpuExecutor, Program]:
    """An executor of the shape, its weights packed."""
    program = build_program({**COMMON, **SHAPES[shape]})
    options = ExecutorOptions(
        dtype="bfloat16", quantize=kind, kv_dtype="bfloat16", device="cpu", threads=threads
    )
    return CpuExecutor(program, RandomWeights(program), options), program


def batch_of(rng: np.random.Generator, sequences: int, first: int, count: int) -> Batch:
    """``count`` random tokens of each sequence from position ``first`` on; the last of each is wanted."""
    blocks = blocks_for(first + count)
    starts = np.arange(sequences + 1) * count
    return Batch(
        tokens=rng.integers(COMMON["vocab_size"], size=sequences * count),
        positions=np.tile(np.arange(first, first + count), sequences),
        starts=starts,
        tables=tuple(np.arange(s * blocks, (s + 1) * blocks) for s in range(sequences)),
        wanted=starts[1:] - 1,
    )


def seconds_of(executor: CpuExecutor, batches: Sequence[Batch]) -> float:
    """Median of a step, after one that warms up."""
    seconds = []
    for batch in batches:
        began = time.perf_counter()
        executor.execute(batch, SamplingBatch())
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def measure(shape: str, kind: str, batches: Sequence[int], repeats: int) -> list[float]:
    """Tokens a second of a prompt, then of each number of sequences; prints them with the bytes read."""
    threads = int(os.environ.get("GALLEY_THREADS", available_cores()))
    executor, program = made(shape, kind, threads)
    executor.allocate_kv(max(*(n * blocks_for(CONTEXT + 1) for n in batches), blocks_for(PROMPT)))
    costs, rng = executor.step_costs(), np.random.default_rng(1)
    total = sum(int(np.prod(s)) for s in program.shapes.values()) / 1e9
    print(
        f"{shape}: {kind}, {total:.2f} billion parameters, {costs.row_operations / 2e9:.2f} active in "
        f"layers, {executor.isa}, {threads} threads"
    )
    prefill = seconds_of(executor, [batch_of(rng, 1, 0, PROMPT) for _ in range(repeats + 1)])
    rate = costs.row_operations * PROMPT / prefill / 1e9
    print(f"  prompt of {PROMPT}: {PROMPT / prefill:8.1f} tokens/s  {rate:8.0f} GOPS", flush=True)
    rates = [PROMPT / prefill]
    for n in batches:
        executor.execute(batch_of(rng, n, 0, CONTEXT), SamplingBatch())
        steps = [batch_of(rng, n, CONTEXT, 1) for _ in range(STEPS + 1)]
        step = seconds_of(executor, steps)
        rates.append(n / step)
        read = costs.weights_read(n) / step / 1e9
        print(f"  {n:3} sequences:   {n / step:8.1f} tokens/s  {read:8.1f} GB/s", flush=True)
    return rates


def main() -> None:
    """Measure each shape, and put the figures into a results file if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", default=[])
    parser.add_argument("--kind", default="int4")
    parser.add_argument("--batch", default="1,4,8,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path)
    wanted = parser.parse_args()
    batches = [int(n) for n in wanted.batch.split(",")]
    choose_isa(os.environ)
    figures = []
    for shape in wanted.shape or SHAPES:
        rates = measure(shape, wanted.kind, batches, wanted.repeats)
        figures.append(
            Figure(
                what=f"random model, {shape}, {wanted.kind}: prompt and decode",
                unit="tokens/s",
                at=(f"prompt of {PROMPT}", *(f"{n} sequences" for n in batches)),
                measured=tuple(float(f"{rate:.3g}") for rate in rates),
                date=datetime.now(UTC).date().isoformat(),
                command="python -m benchmarks.moe",
            )
        )
    if wanted.results is not None:
        put(wanted.results, figures)


if __name__ == "__main__":
    main()
