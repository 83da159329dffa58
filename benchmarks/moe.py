"""Compare mixtures of experts with dense models of as many active parameters: prefill and decode.

    python -m benchmarks.moe [--shape NAME] [--kind int4] [--batch 1,4,8,32] [--repeats 5] [--results FILE]
    python -m benchmarks.moe --peers HOME [--shape NAME] [--batch 1,4,8,32] [--repeats 2] [--results FILE]

Weights are random and are packed without a checkpoint. Every sequence has random tokens, so routing is
nearly uniform: a step of N sequences reads every expert that any of them selects, and GB/s counts those.

With ``--peers`` only the mixtures are measured. They are written as checkpoints and converted by
llama.cpp's and OpenVINO's own tools; then all contenders do the same work in turn, as in ``python -m
benchmarks.peers``. This needs 30 GB of disk for both in the folder HOME, and 20 GB of memory. ``--quick``
is one round of 8 steps after contexts of 16 tokens.
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
from rich.console import Console
from scripts.benchmarks_page import Figure

from benchmarks.peers.checkpoint import COMMON, MIXTURE
from benchmarks.peers.checkpoint import SHAPES as SHAPES_OF_PEERS
from benchmarks.peers.contest import Terms, contest, figures, show
from benchmarks.results_file import machine_file, put
from galley.graph.program import Program
from galley.lab.random_weights import RandomWeights
from galley.machine import available_cores
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import ExecutorOptions
from galley.ops.isa import choose_isa
from galley.ops.sampling import SamplingBatch
from galley.types import blocks_for

CHECKPOINTS: Final = {
    "8 of 0.35 billion, top-2": "mixtral-8x0.35b",
    "64 of 0.025 billion, top-8": "qwen3-moe-64x0.025b",
}
"""The mixtures by their names here -> in :data:`benchmarks.peers.checkpoint.SHAPES`."""
SHAPES: Final[dict[str, dict[str, Any]]] = {
    **{name: SHAPES_OF_PEERS[shape] for name, shape in CHECKPOINTS.items()},
    "64 of 0.05 billion, top-8": {
        **SHAPES_OF_PEERS["qwen3-moe-64x0.025b"],
        "num_hidden_layers": MIXTURE["num_hidden_layers"],
    },
    "dense with as many active parameters": {
        **MIXTURE,
        "model_type": "llama",
        "intermediate_size": 14336,
    },
    "dense with as many active parameters as 64 of 0.05": {
        **MIXTURE,
        "model_type": "llama",
        "intermediate_size": 8192,
    },
}
PROMPT, CONTEXT, STEPS = 512, 64, 24


def made(shape: str, kind: str, threads: int) -> tuple[CpuExecutor, Program]:
    """Return an executor of this shape with packed weights."""
    program = build_program({**COMMON, **SHAPES[shape]})
    options = ExecutorOptions(
        dtype="bfloat16", weight_dtype=kind, kv_dtype="bfloat16", device="cpu", threads=threads
    )
    return CpuExecutor(program, RandomWeights(program), options), program


def batch_of(rng: np.random.Generator, sequences: int, first: int, count: int) -> Batch:
    """Return ``count`` random tokens of each sequence from position ``first``, with logits of the last."""
    blocks = blocks_for(first + count)
    starts = np.arange(sequences + 1) * count
    return Batch(
        tokens=rng.integers(MIXTURE["vocab_size"], size=sequences * count),
        positions=np.tile(np.arange(first, first + count), sequences),
        starts=starts,
        tables=tuple(np.arange(s * blocks, (s + 1) * blocks) for s in range(sequences)),
        wanted=starts[1:] - 1,
    )


def seconds_of(executor: CpuExecutor, batches: Sequence[Batch]) -> float:
    """Return the median time of a step, after one warm-up step."""
    seconds = []
    for batch in batches:
        began = time.perf_counter()
        executor.execute(batch, SamplingBatch())
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def measure(shape: str, kind: str, batches: Sequence[int], repeats: int) -> list[float]:
    """Measure and print tokens per second of a prompt and of each batch size, with the bytes read."""
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


def compare_peers(
    names: Sequence[str],
    home: Path,
    batches: Sequence[int],
    repeats: int,
    steps: int,
    context: int,
) -> list[Figure]:
    """Compare Galley, llama.cpp and OpenVINO GenAI at 4 bits in turns; print a table for each shape."""
    console, made = Console(), []
    for name in names:
        terms = Terms(
            shape=CHECKPOINTS[name],
            bits=4,
            batch=list(batches),
            prompt=PROMPT,
            context=context,
            decode=steps,
            rounds=repeats,
            threads=int(os.environ.get("GALLEY_THREADS", available_cores())),
            peers=["galley", "llama_cpp", "openvino_genai"],
            home=home,
        )
        console.print(f"{name}:")
        comparison = contest(terms, console)
        show(comparison, console)
        what, command = f"random model, {name}, int4", "python -m benchmarks.moe --peers HOME"
        made += figures(comparison, what=what, command=command, target=1.5, rounds=repeats)
    return made


def alone(
    names: Sequence[str], kind: str, batches: Sequence[int], repeats: int
) -> Iterator[Figure]:
    """Measure Galley's executor without an engine."""
    choose_isa(os.environ)
    for name in names:
        rates = measure(name, kind, batches, repeats)
        yield Figure(
            what=f"random model, {name}, {kind}: prompt and decode",
            unit="tokens/s",
            at=(f"prompt of {PROMPT}", *(f"{n} sequences" for n in batches)),
            measured=tuple(float(f"{rate:.3g}") for rate in rates),
            date=datetime.now(UTC).date().isoformat(),
            command="python -m benchmarks.moe",
        )


def main() -> None:
    """Measure each shape, and write the figures to a results file if one is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", default=[])
    parser.add_argument("--kind", default="int4")
    parser.add_argument("--batch", default="1,4,8,32")
    parser.add_argument(
        "--repeats", type=int, help="default 5; with --peers, the number of rounds, default 2"
    )
    parser.add_argument(
        "--peers", type=Path, metavar="HOME", help="compare with peers, installed in this folder"
    )
    parser.add_argument("--quick", action="store_true", help="with --peers: 1 round of few steps")
    parser.add_argument("--results", type=machine_file)
    wanted = parser.parse_args()
    batches = [int(n) for n in wanted.batch.split(",")]
    if wanted.peers is None:
        made = list(alone(wanted.shape or list(SHAPES), wanted.kind, batches, wanted.repeats or 5))
    else:
        names = wanted.shape or list(CHECKPOINTS)
        if wanted.kind != "int4" or not set(names) <= set(CHECKPOINTS):
            parser.error(
                f"--peers supports only --kind int4 and the shapes {', '.join(CHECKPOINTS)}"
            )
        rounds, steps, context = (
            (1, 8, 16) if wanted.quick else (wanted.repeats or 2, STEPS, CONTEXT)
        )
        made = compare_peers(names, wanted.peers, batches, rounds, steps, context)
    if wanted.results is not None:
        put(wanted.results, made)


if __name__ == "__main__":
    main()
