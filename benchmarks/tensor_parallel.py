"""Compare a model in several processes with the same model in one process with as many threads.

    python -m benchmarks.tensor_parallel [--shape llama-1b] [--layers 8] [--ranks 2] [--kind int8]
        [--batch 1,8,32] [--rounds 7] [--tcp]

Weights are random. Both compute the same steps in turns, so what else the machine does affects both alike;
the ratio of a round is printed as the median of all rounds, with the least and the greatest. CPU seconds
are those of all processes, user and system: waiting for another rank counts while a rank spins. Logits are
compared bit by bit. With --tcp, two ranks exchange rows over a connection of this machine, as ranks on two
machines do.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import psutil

from benchmarks.peers.checkpoint import COMMON, SHAPES
from galley.engine.parallel.executor import ParallelExecutor
from galley.engine.parallel.frames import Channel
from galley.engine.parallel.links import RankLink, waiting_for
from galley.engine.parallel.mesh import Mesh
from galley.engine.parallel.rank import options_of, serve
from galley.graph.divide import Divided, divide
from galley.graph.program import Program
from galley.lab.random_weights import RandomWeights
from galley.links.access import Access
from galley.links.sockets import SealedSocket, accepted, connect
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.communicator import (
    SLOT_BYTES,
    Communicator,
    communicator,
    mapped_memory,
    new_memory,
)
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, ExecutorOptions, forward
from galley.types import blocks_for

PROMPT: Final = 512
CONTEXT: Final = 64
ACCESS: Final = Access(b"of this benchmark", None, None)
STEPS: Final = 8
"""Steps of decoding in a round."""


def program_of(shape: str, layers: int | None) -> Program:
    """Return the program of a shape, with fewer layers if requested."""
    config = {**COMMON, **SHAPES[shape]}
    if layers is not None:
        config["num_hidden_layers"] = layers
    return build_program(config)


def options_for(kind: str, threads: int) -> ExecutorOptions:
    """Return the options of both executors."""
    return ExecutorOptions(
        dtype="bfloat16", weight_dtype=kind, kv_dtype="bfloat16", device="cpu", threads=threads
    )


def part_of(part: Divided, program: Program, kind: str, shared: Communicator) -> Executor:
    """Return the executor of a rank, with one thread."""
    options = options_of(part, options_for(kind, 1), shared, 0)
    return CpuExecutor(part.program, part.weights(RandomWeights(program)), options)


def run_rank(wanted: argparse.Namespace) -> None:
    """Be a rank."""
    channel = Channel(socket.socket(fileno=wanted.socket))
    if wanted.port:
        made = connect("127.0.0.1", wanted.port, ACCESS, time.monotonic() + 60, within=60)
        shared = over_tcp(1, made)
    else:
        memory = mapped_memory(wanted.memory, wanted.ranks, SLOT_BYTES)
        shared = communicator(memory, wanted.rank, wanted.ranks, SLOT_BYTES)
    program = program_of(wanted.shape, wanted.layers)
    part = divide(program, wanted.rank, wanted.ranks)
    serve(channel, part_of(part, program, wanted.kind, shared), shared)


def over_tcp(rank: int, connection: SealedSocket) -> Communicator:
    """Return the communicator of one of two ranks, with memory of its own."""
    memory = mapped_memory(-1, 2, SLOT_BYTES)
    shared = communicator(memory, rank, 2, SLOT_BYTES)
    Mesh(memory, shared, SLOT_BYTES, {1 - rank: connection})
    return shared


def parallel(wanted: argparse.Namespace, program: Program) -> ParallelExecutor:
    """Start the other ranks and return the executor of all."""
    file = new_memory(wanted.ranks, SLOT_BYTES)
    memory = mapped_memory(file, wanted.ranks, SLOT_BYTES)
    shared = communicator(memory, 0, wanted.ranks, SLOT_BYTES)
    parts = [divide(program, rank, wanted.ranks) for rank in range(wanted.ranks)]
    links = []
    listener = socket.create_server(("127.0.0.1", 0)) if wanted.tcp else None
    port = 0 if listener is None else listener.getsockname()[1]
    for rank in range(1, wanted.ranks):
        ours, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.tensor_parallel", *sys.argv[1:]),
                    *("--rank", str(rank), "--socket", str(theirs.fileno()), "--memory", str(file)),
                    *("--port", str(port)),
                ],
                pass_fds=[theirs.fileno(), file],
            )
        if listener is not None:
            shared = over_tcp(0, accepted(listener.accept()[0], ACCESS))
        links.append(RankLink(rank, ours, shared, waiting_for(child)))
    own = part_of(parts[0], program, wanted.kind, shared)
    loaded = [link.loaded() for link in links]
    os.close(file)
    return ParallelExecutor(
        own, parts, links, loaded, shared, here=wanted.ranks, on_close=lambda: None
    )


def batch_of(vocab: int, sequences: int, first: int, count: int) -> Batch:
    """Return ``count`` random tokens of each sequence from position ``first``, with logits of the last."""
    blocks = blocks_for(CONTEXT + STEPS + PROMPT)
    starts = np.arange(sequences + 1) * count
    return Batch(
        tokens=np.random.default_rng(first).integers(vocab, size=sequences * count),
        positions=np.tile(np.arange(first, first + count), sequences),
        starts=starts,
        tables=tuple(np.arange(s * blocks, (s + 1) * blocks) for s in range(sequences)),
        wanted=starts[1:] - 1,
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children())]
    return float(sum(one.user + one.system for one in times))


def seconds_of(executor: Executor, steps: Sequence[Batch]) -> tuple[float, float]:
    """Return the seconds of all steps, and their CPU seconds."""
    began, cpu = time.perf_counter(), cpu_seconds()
    for batch in steps:
        forward(executor, batch)
    return time.perf_counter() - began, cpu_seconds() - cpu


def compare(
    whole: Executor, parts: Executor, name: str, rounds: int, steps: Sequence[Batch], tokens: int
) -> None:
    """Measure both in turns and print a line."""
    found = []
    for turn in range(rounds + 1):
        order = (whole, parts) if turn % 2 else (parts, whole)
        measured = {id(executor): seconds_of(executor, steps) for executor in order}
        found.append((measured[id(whole)], measured[id(parts)]))
    found = found[1:]  # the first is a warm-up
    ratios = [one[0] / other[0] for one, other in found]
    rates = [tokens / min(pair[i][0] for pair in found) for i in (0, 1)]
    cpu = [statistics.median(pair[i][1] for pair in found) for i in (0, 1)]
    print(
        f"{name:<14} {rates[0]:9.1f} {rates[1]:9.1f} tokens/s at best; speed of the parts "
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); CPU seconds "
        f"{cpu[0]:.2f} and {cpu[1]:.2f}",
        flush=True,
    )


def main() -> None:
    """Measure both and print a line for each load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="llama-1b", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="default: those of the shape")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kind", default="int8")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tcp", action="store_true", help="two ranks without shared memory")
    for hidden in ("--rank", "--socket", "--memory", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.tcp and wanted.ranks != 2:
        parser.error("--tcp measures two ranks")
    if wanted.rank is not None:
        run_rank(wanted)
        return
    program = program_of(wanted.shape, wanted.layers)
    batches = [int(n) for n in wanted.batch.split(",")]
    parts = parallel(wanted, program)
    whole = CpuExecutor(program, RandomWeights(program), options_for(wanted.kind, wanted.ranks))
    for executor in (whole, parts):
        executor.allocate_kv(max(batches) * blocks_for(CONTEXT + STEPS + PROMPT))
    vocab = program.vocab_size
    prompt = [batch_of(vocab, 1, 0, PROMPT)]
    same = np.array_equal(forward(whole, prompt[0]), forward(parts, prompt[0]))
    print(
        f"{wanted.shape}, {wanted.kind}: one process with {wanted.ranks} threads, and {wanted.ranks} "
        f"processes with one; logits are {'the same' if same else 'DIFFERENT'}"
    )
    compare(whole, parts, f"prompt of {PROMPT}", wanted.rounds, prompt, PROMPT)
    for n in batches:
        for executor in (whole, parts):
            forward(executor, batch_of(vocab, n, 0, CONTEXT))
        steps = [batch_of(vocab, n, CONTEXT + i, 1) for i in range(STEPS)]
        compare(whole, parts, f"{n} sequences", wanted.rounds, steps, n * STEPS)
    parts.close()


if __name__ == "__main__":
    main()
