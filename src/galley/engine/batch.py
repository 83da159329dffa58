"""Turns a step's work into the arrays an executor takes."""

from array import array
from collections.abc import Sequence

import numpy as np

from galley.engine.kv import KVCache
from galley.engine.scheduler import Work
from galley.engine.sequence import Window
from galley.ops.executor import Batch, CrossContext, EncoderBatch


def assemble(plan: Sequence[Work], kv: KVCache) -> Batch:
    """Rows in the order of the plan."""
    tokens, positions = array("q"), array("q")
    starts, wanted = array("q", [0]), array("q")
    tables: list[array[int]] = []
    for work in plan:
        sequence = work.sequence
        if sequence.beams is not None and sequence.generated:
            for fork, hypothesis in enumerate(sequence.beams.running):
                wanted.append(len(tokens))
                tokens.append(hypothesis.tokens[-1])
                positions.append(sequence.computed)
                starts.append(len(tokens))
                tables.append(kv.table(sequence.id, fork))
            continue
        begin, count = sequence.computed, work.count
        if count == 1:  # a slice and ranges would take two fifths of the time
            tokens.append(sequence.tokens[begin])
            positions.append(begin)
        else:
            tokens.extend(sequence.tokens[begin : begin + count])
            positions.extend(range(begin, begin + count))
        rows = len(tokens)
        starts.append(rows)
        if work.wanted == 1:
            wanted.append(rows - 1)
        else:
            wanted.extend(range(rows - work.wanted, rows))
        tables.append(sequence.blocks)
    speech = bool(plan) and plan[0].sequence.window is not None
    return Batch(
        tokens=tokens,
        positions=positions,
        starts=starts,
        tables=tuple(tables),
        wanted=wanted,
        cross=_cross(plan, kv) if speech else None,
    )


def assemble_windows(plan: Sequence[Work], kv: KVCache) -> EncoderBatch | None:
    """What is to be encoded before the step's tokens are computed; None if nothing is."""
    works = [work for work in plan if work.encodes]
    if not works:
        return None
    features = [_window(work).features for work in works]
    return EncoderBatch(
        features=np.concatenate(features),
        starts=np.cumsum([0, *map(len, features)], dtype=np.int64),
        tables=tuple(kv.cross_table(work.sequence.id) for work in works),
    )


def _cross(plan: Sequence[Work], kv: KVCache) -> CrossContext:
    rows = [(work, _window(work).rows) for work in plan for _ in range(work.sequence.width)]
    return CrossContext(
        tables=tuple(kv.cross_table(work.sequence.id) for work, _ in rows),
        rows=np.array([count for _, count in rows], dtype=np.int64),
    )


def _window(work: Work) -> Window:
    assert work.sequence.window is not None
    return work.sequence.window
