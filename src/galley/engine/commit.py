"""Applies a step's result to its sequences: counts, tokens, and the blocks of rejected draft tokens."""

from collections.abc import Sequence as Plan

from galley.engine.kv import KVCache
from galley.engine.scheduler import Work
from galley.engine.sequence import Sequence
from galley.ops.sampling import StepResult
from galley.types import Output


def commit(plan: Plan[Work], result: StepResult, kv: KVCache) -> list[Output]:
    """Count the step's tokens as computed, give each task its rows, and return the outputs for callers."""
    outputs: list[Output] = []
    for work in plan:
        sequence = work.sequence
        sequence.computed += work.count
        output = sequence.task.consume(sequence, work, result)
        if output is not None:
            outputs.append(output)
        if work.draft_tokens:
            _take_back(sequence, kv)
        if sequence.forks is not None:
            kv.fork(sequence.id, sequence.forks)
            sequence.forks = None
    return outputs


def _take_back(sequence: Sequence, kv: KVCache) -> None:
    """Roll back the computed draft tokens that the task did not accept."""
    sequence.computed = min(sequence.computed, len(sequence.tokens) - 1)
    sequence.settled = 0
    kv.truncate(sequence.id, len(sequence.tokens))
