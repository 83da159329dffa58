"""A comparison of language models, from a checkpoint's name to a table and figures."""

import importlib
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.peers.checkpoint import SHAPES
from benchmarks.peers.child import Child
from benchmarks.peers.compare import Comparison, compare, is_galley, works
from benchmarks.peers.install import PeerFailed, converted, install, make_checkpoint
from benchmarks.peers.protocol import Peer

PEERS: Final = ("galley", "llama_cpp", "openvino_genai", "vllm_cpu")
HOME: Final = Path.home() / ".cache/galley-peers"
"""Default folder of peers, checkpoints and conversions."""
_CALLED: Final = {"llama_cpp": "llama.cpp", "openvino_genai": "OpenVINO GenAI", "vllm_cpu": "vLLM"}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is compared, and how.

    Attributes:
        shape: a key of :data:`benchmarks.peers.checkpoint.SHAPES`.
        bits: bits per weight.
        batch: numbers of sequences that decode together.
        prompt: tokens of the prefill.
        context: tokens of each sequence before decoding.
        decode: steps of a decode run.
        rounds: measured rounds, after one warm-up round.
        threads: threads of each contender.
        peers: modules of :mod:`benchmarks.peers`.
        home: folder of the peers, checkpoints and conversions.
    """

    shape: str
    bits: int = 4
    batch: list[int] = field(default_factory=lambda: [1, 4, 8, 16, 32])
    prompt: int = 512
    context: int = 64
    decode: int = 32
    rounds: int = 5
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    peers: list[str] = field(default_factory=lambda: list(PEERS))
    home: Path = HOME


def contest(terms: Terms, console: Console) -> Comparison:
    """Prepare every contender and have those that are ready do the same work in turns."""
    comparison = Comparison(works(terms.prompt, terms.context, terms.decode, terms.batch))
    with ExitStack() as stack:
        children = _children(terms, comparison, stack, console)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            total = len(children) * len(comparison.works) * (terms.rounds + 1)
            bar = progress.add_task("", total=total)
            compare(
                children,
                comparison,
                rounds=terms.rounds,
                vocab_size=SHAPES[terms.shape]["vocab_size"],
                on_answer=lambda name, work: progress.update(
                    bar, advance=1, description=f"{name}: {work.name}"
                ),
            )
    return comparison


def _children(
    terms: Terms, comparison: Comparison, stack: ExitStack, console: Console
) -> dict[str, Child]:
    """Load every contender that could be prepared; the others are listed as failures."""
    checkpoint = make_checkpoint(terms.shape, terms.home)
    children = {}
    for module in terms.peers:
        peer: Peer = importlib.import_module(f"benchmarks.peers.{module}").PEER
        for variant in peer.variants.get(terms.bits, ()):
            name = f"{module} {variant}"
            try:
                console.print(f"{name}: install, convert, load")
                install(peer, terms.home)
                model = converted(peer, variant, checkpoint, terms.home)
                child = Child(peer, variant, model, terms.threads, terms.home)
            except PeerFailed as error:
                comparison.failures[name] = str(error)
                continue
            stack.callback(child.close)
            children[name] = child
            console.print(f"{name}: ready after {child.load_seconds:.1f} s")
    return children


def show(comparison: Comparison, console: Console) -> None:
    """Format the medians, Galley's ratios to the best peer, and the contenders left out."""
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


def figures(
    comparison: Comparison, *, what: str, command: str, target: float, rounds: int
) -> list[Figure]:
    """Return Galley's ratios to the best peer and all medians; empty unless both sides ran."""
    at = tuple(
        f"{work.batch} sequences" if work.steps else f"prompt of {work.tokens}"
        for work in comparison.works
    )
    peers = [name for name in comparison.rates if not is_galley(name)]
    if not peers:
        return []
    medians = "; ".join(
        f"{_called(name)} "
        + ", ".join(f"{comparison.median(name, work):.3g}" for work in comparison.works)
        for name in comparison.rates
    )
    shared: dict[str, Any] = {
        "at": at,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
    }
    return [
        Figure(
            what=f"{what}, compared with peers",
            unit="ratio",
            measured=tuple(
                round(comparison.ratio(name, work) or 0.0, 2) for work in comparison.works
            ),
            target=(target,),
            peer=", ".join(map(_called, peers)),
            remark=f"tokens/s: {medians}; {rounds} round{'s' if rounds > 1 else ''}",
            **shared,
        )
        for name in filter(is_galley, comparison.rates)
    ]


def _called(contender: str) -> str:
    """Return the contender's public name with its variant."""
    module, _, variant = contender.partition(" ")
    return f"{_CALLED.get(module, module)} {variant}"
