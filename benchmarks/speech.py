"""Compare Galley with faster-whisper on the same random Whisper checkpoint.

    python -m benchmarks.speech --shape whisper-base --bits 8 --threads 2 --json FILE
    python -m benchmarks.speech --hour --rounds 1

Installs faster-whisper into its own virtual environment under --home and converts the checkpoint with its
own tool. All contenders stay loaded and do the same work in turn: encode 30-second windows, and decode over
one window, greedily and with beams. No text ends early. Galley's encoder time includes the keys and values
of cross-attention, which CTranslate2 computes in the first decode step.

``--hour`` measures an hour of audio instead: 120 windows to 120 texts, at the number of concurrent windows
that suits each contender best. Run it on an idle machine.
"""

import argparse
import importlib
import json
import os
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.protocol import Peer
from benchmarks.peers.turns import Turns
from benchmarks.peers.whisper_checkpoint import SHAPES, write_whisper

PEERS: Final = ("galley_speech", "faster_whisper")


def main() -> None:
    """Prepare, measure, print."""
    arguments = _arguments()
    console = Console()
    comparison = Turns(_requests(arguments))
    checkpoint = arguments.home / "checkpoints" / arguments.shape
    if not (checkpoint / "config.json").exists():
        write_whisper(checkpoint, arguments.shape)
    with ExitStack() as stack:
        children = comparison.prepare(
            _contenders(arguments.bits),
            checkpoint,
            threads=arguments.threads,
            home=arguments.home,
            stack=stack,
            console=console,
        )
        for number in range(
            1 if arguments.hour else 0, arguments.rounds + 1
        ):  # a run of an hour needs no warm-up
            comparison.round(children, warm_up=number == 0)
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

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speech",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="whisper-base")
    parser.add_argument("--bits", type=int, choices=(8, 32), default=8)
    parser.add_argument(
        "--windows", type=int, default=3, help="windows encoded per round, one after another"
    )
    parser.add_argument("--tokens", type=int, default=100, help="tokens of the decoded text")
    parser.add_argument("--beams", type=sizes, default=[1, 5])
    parser.add_argument("--hour", action="store_true", help="transcribe an hour of audio instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache/galley-peers")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    return parser.parse_args()


def _requests(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the measured requests by their names in the table."""
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


def _contenders(bits: int) -> list[tuple[str, str]]:
    """Return the module and variant of each contender."""
    peers: dict[str, Peer] = {
        module: importlib.import_module(f"benchmarks.peers.{module}").PEER for module in PEERS
    }
    return [(module, variant) for module, peer in peers.items() for variant in peer.variants[bits]]


def _print(comparison: Turns, console: Console) -> None:
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
