"""Measure a whole model in every weight format: prefill, and decode of 1, 8 and 32 sequences.

    python -m benchmarks.kinds FOLDER [--llama PYTHON] [--name NAME] [--kinds KINDS]
        [--repeats N] [--results FILE]

Runs ``galley bench engine`` for each format: the checkpoint as ``--quantize`` rounds it and, with
``--llama`` (a Python that has llama-cpp-python), GGUF files made by llama.cpp's quantizer, whose integers
Galley computes with directly. Random weights are as fast as trained ones. Next to tokens per second the
table shows how many bytes a decode step of one sequence reads, and at which rate, so that formats of
different sizes can be compared. Run it on an idle machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.gguf_peers import Peer
from benchmarks.results_file import machine_file, put

ROUNDED: Final = ("int4", "int8", "bf16", "f16", "float32")
FILES: Final = ("Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
"""GGUF types whose integers Galley computes with; those ending in M are mixtures."""
BATCHES: Final = (1, 8, 32)


@dataclass(frozen=True)
class Speed:
    """The figures of one kind of weights.

    Attributes:
        kind: the kind of weights.
        prefill: tokens per second of a prompt of 512 tokens.
        decode: tokens per second at each size of :data:`BATCHES`.
        bytes: bytes that a decode step of one sequence reads.
        rate: bytes per second at which it reads them.
        share: that rate as a share of the machine's read bandwidth.
    """

    kind: str
    prefill: float
    decode: tuple[float, ...]
    bytes: float
    rate: float
    share: float


def measure(kind: str, model: Path, repeats: int, *options: str) -> Speed:
    """Measure one model with ``galley bench engine``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        batches = ",".join(map(str, BATCHES))
        command = [sys.executable, "-m", "galley", "bench", "engine", str(model), *options]
        command += [
            "--batch",
            batches,
            "--decode",
            "32",
            "--repeats",
            str(repeats),
            "--json",
            str(file),
        ]
        subprocess.run(command, check=True, capture_output=True)
        points: list[dict[str, Any]] = json.loads(file.read_text())["points"]
    prefill, *decode = points
    alone = decode[0]
    rate = alone["bytes_per_s"]["median"]
    return Speed(
        kind,
        prefill["tokens_per_s"]["median"],
        tuple(point["tokens_per_s"]["median"] for point in decode),
        rate / alone["tokens_per_s"]["median"],
        rate,
        alone["read_share"]["median"],
    )


def as_files(
    checkpoint: Path, python: str, folder: Path, kinds: Sequence[str], repeats: int
) -> Iterator[Speed]:
    """Yield the checkpoint in each type of :data:`FILES`, one file at a time."""
    source = folder / "whole.gguf"
    if not source.exists():
        galley = [sys.executable, "-m", "galley", "quantize", str(checkpoint), str(source)]
        options = ["--format", "gguf", "--method", "none", "--nearest-tokenizer"]
        subprocess.run([*galley, *options], check=True, capture_output=True)
    for kind in kinds:
        file = folder / f"{kind}.gguf"
        Peer(python, folder).run(
            weight_dtype={"source": str(source), "target": str(file), "type": kind}
        )
        yield measure(kind, file, repeats)
        file.unlink()


def printed(speed: Speed) -> Speed:
    """Print a figure at once, since each kind takes minutes, and return it."""
    decode = ", ".join(f"{rate:.1f}" for rate in speed.decode)
    print(f"{speed.kind:8} prefill {speed.prefill:.0f}, decode {decode} tokens/s", flush=True)
    return speed


def figures(name: str, speeds: list[Speed]) -> list[Figure]:
    """Return the figures for the results page."""
    day = datetime.now(UTC).date().isoformat()
    return [
        Figure(
            what=f"{name}, weights {s.kind}",
            unit="tokens/s",
            at=("prefill", *map(str, BATCHES[:-1]), f"{BATCHES[-1]} sequences"),
            measured=tuple(float(f"{rate:.4g}") for rate in (s.prefill, *s.decode)),
            date=day,
            command="python -m benchmarks.kinds FOLDER --llama PYTHON",
            remark=(
                f"a step of one sequence reads {s.bytes / 1e6:.0f} MB at {s.rate / 1e9:.1f} GB/s, "
                f"{s.share:.0%} of the machine's rate"
            ),
        )
        for s in speeds
    ]


def main() -> None:
    """Measure every kind and print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--llama", metavar="PYTHON")
    parser.add_argument("--name", default="1.24-billion Llama")
    parser.add_argument("--kinds", default=",".join((*ROUNDED, *FILES)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=machine_file)
    options = parser.parse_args()
    checkpoint: Path = options.checkpoint
    wanted = options.kinds.split(",")
    speeds = [
        printed(measure(kind, checkpoint, options.repeats, "--weight-dtype", kind))
        for kind in wanted
        if kind in ROUNDED
    ]
    files = [kind for kind in wanted if kind in FILES]
    if options.llama and files:
        with tempfile.TemporaryDirectory() as folder:
            made = (checkpoint, options.llama, Path(folder), files, options.repeats)
            speeds += map(printed, as_files(*made))
    names = ["weights", "prefill", *map(str, BATCHES), "MB a step", "GB/s", "share"]
    table = Table(*names, title="tokens/s")
    for s in speeds:
        rates = [f"{rate:.1f}" for rate in (s.prefill, *s.decode)]
        reads = [f"{s.bytes / 1e6:.0f}", f"{s.rate / 1e9:.1f}", f"{s.share:.0%}"]
        table.add_row(s.kind, *rates, *reads)
    Console().print(table)
    if options.results:
        put(options.results, figures(options.name, speeds))


if __name__ == "__main__":
    main()
