"""Rounds of the same work for every contender in turn, and the ratios of their medians."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.peers.child import Child
from benchmarks.peers.install import PeerFailed


@dataclass(frozen=True)
class Work:
    """One column of the table. ``steps`` is 0 for prefill."""

    batch: int
    tokens: int
    steps: int

    @property
    def name(self) -> str:
        """Return the column's heading."""
        return f"decode x {self.batch}" if self.steps else f"prefill {self.tokens}"

    def tokens_per_s(self, seconds: Sequence[float]) -> float:
        """Return the tokens per second of an answer; the first of several steps is warm-up."""
        if not self.steps:
            return self.tokens / seconds[0]
        return self.batch * (len(seconds) - 1) / sum(seconds[1:])


@dataclass
class Comparison:
    """What was measured.

    Attributes:
        rates: contender -> work -> tokens per second, one for each round.
        failures: contender -> why it was left out.
    """

    works: list[Work]
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, contender: str, work: Work) -> float:
        """Return the median tokens per second."""
        return statistics.median(self.rates[contender][work.name])

    def best_peer(self, work: Work) -> str | None:
        """Return the fastest contender other than Galley."""
        peers = [name for name in self.rates if not is_galley(name)]
        return max(peers, key=lambda name: self.median(name, work), default=None)

    def ratio(self, contender: str, work: Work) -> float | None:
        """Return Galley's ratio to the best peer's median."""
        best = self.best_peer(work)
        return self.median(contender, work) / self.median(best, work) if best else None


def is_galley(contender: str) -> bool:
    """Contenders are named ``PEER VARIANT``."""
    return contender.split()[0] == "galley"


def works(prompt: int, context: int, steps: int, batches: Sequence[int]) -> list[Work]:
    """Return prefill, then decode at each batch size, with one extra step as a warm-up."""
    return [Work(1, prompt, 0), *(Work(batch, context, steps + 1) for batch in batches)]


def compare(
    children: Mapping[str, Child],
    comparison: Comparison,
    *,
    rounds: int,
    vocab_size: int,
    on_answer: Callable[[str, Work], None],
) -> None:
    """Fill in the rates: one warm-up round, then ``rounds``; in each, all contenders do each work in turn.

    A contender that fails is left out from then on, with all its rates.
    """
    alive = dict(children)
    comparison.rates |= {name: {work.name: [] for work in comparison.works} for name in alive}
    for number, work, prompts in _schedule(comparison.works, rounds, vocab_size):
        for name, child in list(alive.items()):
            # The first round is short: it only has to touch everything once.
            steps = min(work.steps, 3) if number == 0 else work.steps
            try:
                seconds = child.measure(prompts, steps)
            except PeerFailed as error:
                comparison.failures[name] = f"{work.name}: {error}"
                del alive[name], comparison.rates[name]
                continue
            if number:
                comparison.rates[name][work.name].append(work.tokens_per_s(seconds))
            on_answer(name, work)


def _schedule(
    works: Sequence[Work], rounds: int, vocab_size: int
) -> Iterator[tuple[int, Work, list[list[int]]]]:
    random = np.random.default_rng(0)
    for number in range(rounds + 1):
        for work in works:
            ids = random.integers(vocab_size, size=(work.batch, work.tokens))
            yield number, work, [[int(token) for token in row] for row in ids]
