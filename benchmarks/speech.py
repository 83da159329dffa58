"""Galley beside faster-whisper on one random Whisper checkpoint, in one run.

    python -m benchmarks.speech --shape whisper-base --bits 8 --threads 2 --json FILE

Installs faster-whisper into a virtual environment of its own under --home, converts the checkpoint with
its own tool, keeps all contenders loaded and has them do the same work in turns: encode windows of 30
seconds, and decode over one window, greedily and with beams. Nothing ends a text early. Galley's encoder
also computes cross-attention's keys and values, which CTranslate2 leaves to the first step of decoding.

    python -m benchmarks.speech --hour --rounds 1

measures an hour instead: 120 windows to 120 texts, with as many windows at once as suits each. For an
idle machine.
"""

import argparse
import importlib
import json
import os
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.child import Child
from benchmarks.peers.install import PeerFailed, converted, install
from benchmarks.peers.protocol import Peer
from benchmarks.peers.whisper_checkpoint import SHAPES, write_whisper

PEERS: Final = ("galley_speech", "faster_whisper")


@dataclass
class Comparison:
    """Seconds a window, token or hour: contender -> work -> one for each round; who was left out, why."""

    requests: dict[str, dict[str, Any]]
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, contender: str, work: str) -> float | None:
        """None where it cannot do the work."""
        measured = self.seconds[contender][work]
        return statistics.median(measured) if measured else None

    def ratio(self, contender: str, work: str) -> float | None:
        """How many times faster it is than the fastest faster-whisper."""
        mine = self.median(contender, work)
        peers = [self.median(name, work) for name in self.seconds if not name.startswith("galley")]
        best = min((seconds for seconds in peers if seconds), default=None)
        return best / mine if best and mine else None


def main() -> None:
    """Prepare, measure, print."""
    arguments = _arguments()
    console = Console()
    comparison = Comparison(_requests(arguments))
    with ExitStack() as stack:
        children = _children(arguments, comparison, stack, console)
        for number in range(
            1 if arguments.hour else 0, arguments.rounds + 1
        ):  # an hour needs no warm-up
            _round(children, comparison, warm_up=number == 0)
            console.print(f"round {number} of {arguments.rounds}")
    _print(comparison, console)
    if arguments.json:
        settings = {k: v for k, v in vars(arguments).items() if k not in ("home", "json")}
        page = {
            "settings": settings,
            "seconds": comparison.seconds,
            "left_out": comparison.failures,
        }
        arguments.json.write_text(json.dumps(page, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    def sizes(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.speech", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="whisper-base")
    parser.add_argument("--bits", type=int, choices=(8, 32), default=8)
    parser.add_argument("--windows", type=int, default=3, help="encoded one after another a round")
    parser.add_argument("--tokens", type=int, default=100, help="of the text that is decoded")
    parser.add_argument("--beams", type=sizes, default=[1, 5])
    parser.add_argument("--hour", action="store_true", help="an hour's windows to texts, instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache/galley-peers")
    parser.add_argument("--json", type=Path, help="write every figure to this file, too")
    return parser.parse_args()


def _requests(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What is measured, by its name in the table."""
    tokens = arguments.tokens
    if arguments.hour:
        work = {"work": "transcribe", "windows": 120, "tokens": tokens}
        return {f"an hour{_with(beams)}": {**work, "beams": beams} for beams in arguments.beams}
    decode = {"work": "decode", "tokens": tokens}
    return {
        "encode": {"work": "encode", "windows": arguments.windows},
        **{f"decode{_with(beams)}": {**decode, "beams": beams} for beams in arguments.beams},
    }


def _with(beams: int) -> str:
    return f", {beams} beams" if beams > 1 else ""


def _children(
    arguments: argparse.Namespace, comparison: Comparison, stack: ExitStack, console: Console
) -> dict[str, Child]:
    """Every contender that could be prepared, loaded; the others are among the failures."""
    checkpoint = arguments.home / "checkpoints" / arguments.shape
    if not (checkpoint / "config.json").exists():
        write_whisper(checkpoint, arguments.shape)
    children = {}
    for module in PEERS:
        peer: Peer = importlib.import_module(f"benchmarks.peers.{module}").PEER
        for variant in peer.variants[arguments.bits]:
            name = f"{module} {variant}"
            console.print(f"{name}: install, convert, load")
            try:
                install(peer, arguments.home)
                model = converted(peer, variant, checkpoint, arguments.home)
                child = Child(peer, variant, model, arguments.threads, arguments.home)
            except PeerFailed as error:
                comparison.failures[name] = str(error)
                continue
            stack.callback(child.close)
            children[name] = child
            comparison.seconds[name] = {work: [] for work in comparison.requests}
    return children


def _round(children: dict[str, Child], comparison: Comparison, *, warm_up: bool) -> None:
    """Work by work, all contenders one after another; one that fails at a work has no figure for it."""
    for work, request in comparison.requests.items():
        for name, child in children.items():
            if f"{name}, {work}" in comparison.failures:
                continue
            try:
                seconds = child.ask(request)
            except PeerFailed as error:
                comparison.failures[f"{name}, {work}"] = str(error)
                continue
            if not warm_up:
                comparison.seconds[name][work] += seconds


def _print(comparison: Comparison, console: Console) -> None:
    table = Table("ms, median", *comparison.requests)
    for name, measured in comparison.seconds.items():
        cells = (
            f"{1e3 * statistics.median(seconds):.2f}\n"
            f"[dim]{1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f}[/]"
            if seconds
            else ""
            for seconds in measured.values()
        )
        table.add_row(name, *cells)
    for name in (name for name in comparison.seconds if name.startswith("galley")):
        ratios = (comparison.ratio(name, work) for work in comparison.requests)
        table.add_row(f"{name}, times faster", *(f"{r:.2f}" if r else "" for r in ratios))
    console.print(table)
    for name, reason in comparison.failures.items():
        console.print(f"left out: {name}: {reason}", style="red", highlight=False)


if __name__ == "__main__":
    main()
