"""Compare Galley's prompt lookup with its peers', one sequence at a time, on texts known in advance.

``python -m benchmarks.speculation --peer HOME`` runs it. The model is a chain model of 1.24 billion
parameters at 4 bits whose prompts predict a chosen share of its text: see :mod:`benchmarks.peers.chain`.
Every contender looks up the same prompts in its own way, and every text must equal the known one. For
peers, the number of draft tokens per step is a setting; the fastest one counts.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.peers.chain import predicting_prompt
from benchmarks.peers.checkpoint import CHAIN, SHAPES
from benchmarks.peers.child import Child
from benchmarks.peers.install import PeerFailed, make_checkpoint
from benchmarks.peers.turns import Turns

CONTENDERS: Final = {
    "galley_lookup int4": "Galley int4",
    "llama_cpp Q4_0": "llama.cpp Q4_0",
    "openvino_lookup int4": "OpenVINO GenAI int4",
}
DRAFT_TOKENS: Final = (2, 4, 8)
COMMAND: Final = "python -m benchmarks.speculation --peer HOME"


@dataclass(frozen=True)
class Pace:
    """One contender at one acceptance rate: tokens/s without draft tokens, and at its best number."""

    plain: float
    speculative: float
    draft_tokens: int


Paces = dict[str, dict[float, Pace]]
"""Contender -> share of the predicted tokens that are right -> its pace."""


def measure(
    home: Path, threads: int, rates: Sequence[float], tokens: int, rounds: int, shape: str
) -> tuple[Paces, dict[str, str]]:
    """Measure each contender's speed in turn; return the reason for each one left out.

    Raises:
        AssertionError: a text differs from the known one.
    """
    turns = Turns({})
    with ExitStack() as stack:
        children = turns.prepare(
            [(name.split()[0], name.split()[1]) for name in CONTENDERS],
            make_checkpoint(shape + CHAIN, home),
            threads=threads,
            home=home,
            stack=stack,
            console=Console(),
        )
        found: dict[tuple[str, float, int], list[float]] = {}
        _round(
            children, [rates[0]], 16, 99, shape, {}, turns.failures
        )  # the warm-up touches everything once
        for number in range(rounds):
            _round(children, rates, tokens, number, shape, found, turns.failures)
    return _paces(found, children, rates), turns.failures


def _round(
    children: dict[str, Child],
    rates: Sequence[float],
    tokens: int,
    number: int,
    shape: str,
    found: dict[tuple[str, float, int], list[float]],
    failures: dict[str, str],
) -> None:
    vocab_size = SHAPES[shape + CHAIN]["vocab_size"]
    for rate in rates:
        prompt, text = predicting_prompt(tokens, rate, vocab_size, seed=number)
        for draft_tokens in (0, *DRAFT_TOKENS):
            for name, child in list(children.items()):
                if name.startswith("galley") and draft_tokens not in (0, DRAFT_TOKENS[-1]):
                    continue
                request = {"prompt": prompt, "tokens": tokens, "draft_tokens": draft_tokens}
                try:
                    seconds, *said = child.ask(request)
                except PeerFailed as error:
                    failures[name] = str(error)
                    del children[name]
                    continue
                assert [int(t) for t in said][:tokens] == text, f"{name} generated another text"
                found.setdefault((name, rate, draft_tokens), []).append((tokens - 1) / seconds)


def _paces(
    found: Mapping[tuple[str, float, int], list[float]], names: Mapping[str, Any], rates: Any
) -> Paces:
    """Return the medians of the rounds, at the fastest number of draft tokens."""
    made: Paces = {}
    for name in names:
        for rate in rates:
            by_draft_tokens = {
                draft_tokens: statistics.median(found[name, rate, draft_tokens])
                for draft_tokens in (0, *DRAFT_TOKENS)
                if (name, rate, draft_tokens) in found
            }
            plain = by_draft_tokens.pop(0)
            best = max(by_draft_tokens, key=by_draft_tokens.__getitem__)
            made.setdefault(name, {})[rate] = Pace(plain, by_draft_tokens[best], best)
    return made


def show(paces: Paces, failures: Mapping[str, str], console: Console) -> None:
    """Format a row for each contender and acceptance rate."""
    table = Table("contender", "predictable", "without", "with", "times", "draft tokens")
    for name, by_rate in paces.items():
        for rate, pace in by_rate.items():
            numbers = (f"{pace.plain:.1f}", f"{pace.speculative:.1f}")
            times = f"{pace.speculative / pace.plain:.2f}"
            draft_tokens = "automatic" if name.startswith("galley") else str(pace.draft_tokens)
            table.add_row(CONTENDERS[name], f"{rate:.0%}", *numbers, times, draft_tokens)
    console.print(table)
    for name, reason in failures.items():
        console.print(f"left out: {name}: {reason}", style="red", highlight=False)


def figures(paces: Paces, rates: Sequence[float], rounds: int) -> list[Figure]:
    """Return each contender's gain from speculation, and Galley's speed relative to the fastest peer."""
    at = tuple(f"{rate:.0%}" for rate in rates)
    shared: dict[str, Any] = {
        "at": at,
        "date": datetime.now(UTC).date().isoformat(),
        "command": COMMAND,
    }
    made = [
        Figure(
            what=f"1.24 billion, {CONTENDERS[name]}: prompt lookup, 1 sequence, by predictable tokens",
            unit="times",
            measured=tuple(round(p.speculative / p.plain, 2) for p in by_rate.values()),
            remark=f"tokens/s {', '.join(f'{p.speculative:.3g}' for p in by_rate.values())}, without "
            f"{statistics.median(p.plain for p in by_rate.values()):.3g}; {rounds} rounds",
            **shared,
        )
        for name, by_rate in paces.items()
    ]
    ours = [name for name in paces if name.startswith("galley")]
    peers = [name for name in paces if name not in ours]
    if peers:
        made += [
            Figure(
                what="1.24 billion, int4: prompt lookup, 1 sequence, by predictable tokens, against peers",
                unit="ratio",
                measured=tuple(
                    round(
                        paces[name][rate].speculative
                        / max(max(paces[p][rate].speculative, paces[p][rate].plain) for p in peers),
                        2,
                    )
                    for rate in rates
                ),
                target=(2,),
                peer=", ".join(CONTENDERS[p] for p in peers),
                **shared,
            )
            for name in ours
        ]
    return made
