"""Exact-match evaluation of the demo model on its held-out sets; the caller passes in the generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import heldout
from .heldout import Message, Task

Answerer = Callable[[Sequence[list[Message]]], Sequence[str]]
"""Conversations that end with a user's turn -> one answer for each, in order."""

TARGETS = {1: 0.95, 2: 0.85}
"""Set -> the exact-match rate that every task must reach on it."""


@dataclass(frozen=True, slots=True)
class Miss:
    """An item that the model answered incorrectly, and its answer."""

    item: heldout.Item
    answer: str


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Exact-match score of one task on one set."""

    set: int
    task: Task
    correct: int
    total: int

    @property
    def rate(self) -> float:
        """Share of exact matches, 0 to 1."""
        return self.correct / self.total

    @property
    def passed(self) -> bool:
        """Whether the rate reaches the set's target."""
        return self.rate >= TARGETS[self.set]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores per set and task, and all misses."""

    scores: tuple[TaskScore, ...]
    misses: tuple[Miss, ...]

    @property
    def passed(self) -> bool:
        """Whether every task reaches its target on every set."""
        return all(score.passed for score in self.scores)


def score(expected: str, answer: str) -> bool:
    """Return whether an answer is exactly the expected text, ignoring surrounding whitespace."""
    return answer.strip() == expected


def evaluate(answer: Answerer, sets: Sequence[int] = heldout.SETS) -> Evaluation:
    """Call `answer` with the items of each set and score its answers.

    Raises:
        ValueError: `answer` returned the wrong number of answers.
    """
    scores: list[TaskScore] = []
    misses: list[Miss] = []
    for number in sets:
        items = heldout.read(number)
        answers = answer([item.messages for item in items])
        if len(answers) != len(items):
            raise ValueError(f"expected {len(items)} answers, got {len(answers)}")
        wrong = [
            Miss(item, said)
            for item, said in zip(items, answers, strict=True)
            if not score(item.answer, said)
        ]
        misses += wrong
        for task in dict.fromkeys(item.task for item in items):
            total = sum(item.task == task for item in items)
            failed = sum(miss.item.task == task for miss in wrong)
            scores.append(TaskScore(number, task, total - failed, total))
    return Evaluation(tuple(scores), tuple(misses))
