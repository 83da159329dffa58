"""Galley compared with its peers in one run.

    python -m benchmarks.peers --shape llama-1b --bits 4 --batch 1,4,8,16,32 --json FILE

Installs each peer into a virtual environment of its own under --home, converts one random checkpoint with
the peer's own tools, keeps all of them loaded, and has them do the same work in turns. Run it on an idle
machine.
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
        prog="python -m benchmarks.peers", description="Galley beside its peers, in one run."
    )
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), default=4)
    parser.add_argument("--batch", type=sizes, default=[1, 4, 8, 16, 32])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prefill")
    parser.add_argument("--context", type=int, default=64, help="tokens before the decode")
    parser.add_argument("--decode", type=int, default=32, help="steps of a decode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--json", type=Path, help="write every rate to this file, too")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.split(",")
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(f"--peers: {', '.join(sorted(unknown))} unknown; known: {', '.join(PEERS)}")
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
