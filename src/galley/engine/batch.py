"""Turns a step's work into the arrays an executor takes."""

from collections.abc import Sequence

import numpy as np

from galley.engine.kv import KVCache
from galley.engine.scheduler import Work
from galley.ops.executor import Batch


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
        tokens.extend(sequence.tokens[begin:end])
        positions.extend(range(begin, end))
        starts.append(len(tokens))
        wanted.extend(range(len(tokens) - work.wanted, len(tokens)))
        tables.append(kv.table(sequence.id, end))
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        starts=np.array(starts, dtype=np.int64),
        tables=tuple(tables),
        wanted=np.array(wanted, dtype=np.int64),
    )
