"""Galley beside its peers, in one run.

    python -m benchmarks.peers --shape llama-1b --bits 4 --batch 1,4,8,16,32 --json FILE

Installs each peer into a virtual environment of its own under --home, converts one random checkpoint with
the peer's own tools, keeps all of them loaded, and has them do the same work in turns. For an idle machine.
"""

import argparse
import importlib
import json
import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.peers.checkpoint import SHAPES
from benchmarks.peers.child import Child
from benchmarks.peers.compare import Comparison, compare, is_galley, works
from benchmarks.peers.install import PeerFailed, converted, install, make_checkpoint
from benchmarks.peers.protocol import Peer
from galley.bench.machine import measure_machine
from galley.bench.report import Machine

PEERS: Final = ("galley", "llama_cpp", "openvino_genai", "vllm_cpu")


def main() -> None:
    """Prepare, measure, print."""
    arguments = _arguments()
    console = Console()
    machine = measure_machine(threads=arguments.threads, memory_bytes=1 << 30)
    comparison = Comparison(
        works(arguments.prompt, arguments.context, arguments.decode, arguments.batch)
    )
    with ExitStack() as stack:
        children = _children(arguments, comparison, stack, console)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            total = len(children) * len(comparison.works) * (arguments.rounds + 1)
            bar = progress.add_task("", total=total)
            compare(
                children,
                comparison,
                rounds=arguments.rounds,
                vocab_size=SHAPES[arguments.shape]["vocab_size"],
                on_answer=lambda name, work: progress.update(
                    bar, advance=1, description=f"{name}: {work.name}"
                ),
            )
    _print(comparison, console)
    if arguments.json:
        page = _page(arguments, machine, comparison)
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
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache/galley-peers")
    parser.add_argument("--json", type=Path, help="write every rate to this file, too")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.split(",")
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(f"--peers: {', '.join(sorted(unknown))} unknown; known: {', '.join(PEERS)}")
    return arguments


def _children(
    arguments: argparse.Namespace, comparison: Comparison, stack: ExitStack, console: Console
) -> dict[str, Child]:
    """Every contender that could be prepared, loaded; the others are among the failures."""
    checkpoint = make_checkpoint(arguments.shape, arguments.home)
    children = {}
    for module in arguments.peers:
        peer: Peer = importlib.import_module(f"benchmarks.peers.{module}").PEER
        for variant in peer.variants.get(arguments.bits, ()):
            name = f"{module} {variant}"
            try:
                console.print(f"{name}: install, convert, load")
                install(peer, arguments.home)
                model = converted(peer, variant, checkpoint, arguments.home)
                child = Child(peer, variant, model, arguments.threads, arguments.home)
            except PeerFailed as error:
                comparison.failures[name] = str(error)
                continue
            stack.callback(child.close)
            children[name] = child
            console.print(f"{name}: ready after {child.load_seconds:.1f} s")
    return children


def _print(comparison: Comparison, console: Console) -> None:
    table = Table("tokens/s, median of rounds", *(work.name for work in comparison.works))
    for name, rates in comparison.rates.items():
        table.add_row(
            name,
            *(
                f"{comparison.median(name, work):.1f}\n"
                f"[dim]{min(rates[work.name]):.1f} to {max(rates[work.name]):.1f}[/]"
                for work in comparison.works
            ),
        )
    for name in filter(is_galley, comparison.rates):
        ratios = [comparison.ratio(name, work) for work in comparison.works]
        table.add_row(f"{name} / best peer", *("" if r is None else f"{r:.2f}" for r in ratios))
    console.print(table)
    for name, reason in comparison.failures.items():
        console.print(f"left out: {name}: {reason}", style="red", highlight=False)


def _page(
    arguments: argparse.Namespace, machine: Machine, comparison: Comparison
) -> dict[str, Any]:
    settings = {k: v for k, v in vars(arguments).items() if k not in ("home", "json")}
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
