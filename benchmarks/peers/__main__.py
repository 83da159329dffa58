"""Compare Galley with its peers on the same random checkpoint.

    python -m benchmarks.peers --shape llama-1b --bits 4 --batch 1,4,8,16,32 --json FILE

Installs each peer into its own virtual environment under --home and converts the checkpoint with the peer's
own tools. All contenders stay loaded and do the same work in turn. Run it on an idle machine.
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers.checkpoint import SHAPES
from benchmarks.peers.compare import Comparison, is_galley
from benchmarks.peers.contest import HOME, PEERS, Terms, contest, show
from galley.bench.machine import measure_machine
from galley.bench.report import Machine


def main() -> None:
    """Prepare, measure, print."""
    arguments = _arguments()
    console = Console()
    machine = measure_machine(threads=arguments.threads, memory_bytes=1 << 30)
    terms = Terms(**{k: v for k, v in vars(arguments).items() if k != "json"})
    comparison = contest(terms, console)
    show(comparison, console)
    if arguments.json:
        page = _page(terms, machine, comparison)
        arguments.json.write_text(json.dumps(page, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    def sizes(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Compare Galley with its peers on the same checkpoint.",
    )
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), default=4)
    parser.add_argument("--batch", type=sizes, default=[1, 4, 8, 16, 32])
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens of the prefill")
    parser.add_argument(
        "--context", type=int, default=64, help="tokens of each sequence before decoding"
    )
    parser.add_argument("--decode", type=int, default=32, help="number of decode steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--peers", default=",".join(PEERS), help=f"comma-separated, of {','.join(PEERS)}"
    )
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--json", type=Path, help="also write all rates to this file")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.split(",")
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(
            f"--peers: {', '.join(sorted(unknown))} unknown; choose from {', '.join(PEERS)}"
        )
    return arguments


def _page(terms: Terms, machine: Machine, comparison: Comparison) -> dict[str, Any]:
    settings = {k: v for k, v in asdict(terms).items() if k != "home"}
    return {
        "machine": asdict(machine),
        "settings": settings,
        "works": [asdict(work) for work in comparison.works],
        "tokens_per_s": comparison.rates,
        "ratios": {
            work.name: {
                name: comparison.ratio(name, work) for name in filter(is_galley, comparison.rates)
            }
            for work in comparison.works
        },
        "left_out": comparison.failures,
    }


if __name__ == "__main__":
    main()
