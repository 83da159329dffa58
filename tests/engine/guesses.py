"""Guesses whatever they cost: from a function of the sequence, or from the real proposers."""

from collections.abc import Callable
from collections.abc import Sequence as Tokens

from galley.config import EngineSettings, Speculation
from galley.engine.engine import Engine
from galley.engine.guessing import Guessing, proposers_of
from galley.engine.scheduler import Guess, Work
from galley.engine.sequence import Sequence
from galley.speculation.row_costs import RowCosts

FREE = {1: 1.0, 64: 1.0}
"""Rows that cost nothing, so that whatever may be guessed is."""


def each(propose: Callable[[Sequence], Tokens[int]]) -> Guess:
    """What ``propose`` says for each sequence that can be guessed, as far as the budget goes."""

    def guess(plan: list[Work], budget: int) -> list[tuple[int, Tokens[int]]]:
        found: list[tuple[int, Tokens[int]]] = []
        for i, work in enumerate(plan):
            most = min(budget, work.sequence.task.guessable(work.sequence))
            if work.completes and most > 0:
                guesses = propose(work.sequence)[:most]
                budget -= len(guesses)
                found.append((i, guesses))
        return found

    return guess


def eager(engine: Engine, chosen: Speculation, costs: dict[int, float] = FREE) -> Engine:
    """The engine with guesses that cost what ``costs`` says."""
    proposers = proposers_of(EngineSettings(speculation=chosen))
    engine._guessing = Guessing(proposers, RowCosts(costs))
    assert engine._guessing._speculator is not None
    engine._guessing._speculator._trial.looks = lambda sequences: True  # type: ignore[method-assign]
    engine._scheduler.guess = engine._guessing.guess
    return engine
