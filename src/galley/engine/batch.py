"""Turns a step's work into the arrays an executor takes."""

from collections.abc import Sequence

import numpy as np

from galley.engine.kv import KVCache
from galley.engine.scheduler import Work
from galley.ops.executor import Batch


def wanted_rows(work: Work) -> range:
    """Positions of this work's rows whose logits are wanted.

    The last row when a token is to be sampled after it; the prompt's rows that are still unscored.
    """
    sequence = work.sequence
    begin, end = sequence.computed, sequence.computed + work.count
    if sequence.scores_prompt:
        first = max(begin, len(sequence.scored))
        if first < len(sequence.request.prompt) - 1:
            return range(first, end)
    return range(end - 1, end) if work.completes else range(end, end)


def assemble(plan: Sequence[Work], kv: KVCache) -> Batch:
    """Rows in the order of the plan."""
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    wanted: list[int] = []
    tables = []
    for work in plan:
        sequence = work.sequence
        begin, end = sequence.computed, sequence.computed + work.count
        wanted.extend(starts[-1] + position - begin for position in wanted_rows(work))
        tokens.extend(sequence.tokens[begin:end])
        positions.extend(range(begin, end))
        starts.append(len(tokens))
        tables.append(kv.table(sequence.id, end))
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        starts=np.array(starts, dtype=np.int64),
        tables=tuple(tables),
        wanted=np.array(wanted, dtype=np.int64),
    )
