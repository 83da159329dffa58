"""First steps of an engine, before any request: lazy initialization, and step times by number of rows."""

import time
from typing import Final

import numpy as np

from galley.graph.program import Program
from galley.ops.batch import Batch, CrossContext, EncoderBatch
from galley.ops.draws import GREEDY
from galley.ops.executor import Executor, execute
from galley.ops.sampling import SamplingBatch
from galley.types import BLOCK_TOKENS, blocks_for
from galley.types.audio import SpeechInfo

MEASURED_ROWS: Final = (1, 4, 8, 2, 6, 16, 32, 64)
"""Numbers of rows, in the order in which they are measured."""

MEASURING_SECONDS: Final = 0.5
"""Approximate limit in seconds on the time that measuring takes."""


def warm_up(executor: Executor, program: Program, speech: SpeechInfo | None) -> None:
    """Run one token through everything, so that the first request does not pay for lazy initialization.

    The step writes to block 0, and one row of an encoder output to block 1; no request uses these yet.
    """
    zero = np.zeros(1, dtype=np.int64)
    one = np.ones(1, dtype=np.int64)
    starts = np.array([0, 1], dtype=np.int64)
    cross, inputs = None, None
    if speech is not None:
        assert program.encoder is not None
        silence = np.zeros((1, program.encoder.mels), dtype=np.float32)
        inputs = EncoderBatch(features=silence, starts=starts, tables=(one,))
        cross = CrossContext(tables=(one,), rows=one)
    batch = Batch(
        tokens=zero,
        positions=zero,
        starts=starts,
        tables=(zero,) * len(program.kv_groups),
        wanted=zero,
        cross=cross,
        encode=inputs,
    )
    execute(executor, batch, SamplingBatch())


def measure_rows(
    executor: Executor,
    groups: int,
    most: int,
    speech: SpeechInfo | None = None,
    *,
    blocks: int,
    seconds: float = MEASURING_SECONDS,
) -> dict[int, float]:
    """Measure the seconds of steps with up to ``most`` rows, each of which samples a token.

    Each result is the faster of two measurements, made one after the other, because the first steps of a
    process are slow. The rows belong to one sequence, in the first blocks, which no request uses yet; a
    speech model's rows attend to the longest encoder output that fits in the blocks after them.

    Args:
        executor: the executor, warmed up.
        groups: number of KV groups of the model, which must not be recurrent.
        most: limit given by blocks, context and token budget.
        speech: description of a speech model; None for a text model.
        blocks: number of blocks of the KV cache.
        seconds: no measurement begins after this time, except for the first two numbers of rows; numbers
            without a measurement are left out.

    Returns:
        Number of rows -> seconds of the step.
    """
    measured: dict[int, float] = {}
    began = time.perf_counter()
    for rows in (*MEASURED_ROWS, *MEASURED_ROWS):
        needed = rows in MEASURED_ROWS[:2]
        if rows > most or (not needed and time.perf_counter() - began > seconds):
            continue
        cross = None if speech is None else _longest_output(speech, blocks_for(rows), blocks)
        took = _seconds(executor, groups, rows, cross)
        measured[rows] = min(measured.get(rows, took), took)
    return measured


def _longest_output(speech: SpeechInfo, first: int, blocks: int) -> CrossContext:
    """Return one sequence's context in the blocks from ``first`` on; their content does not matter."""
    rows = min(speech.max_rows, BLOCK_TOKENS * (blocks - first))
    table = np.arange(first, first + blocks_for(rows), dtype=np.int64)
    return CrossContext(tables=(table,), rows=np.array([rows], dtype=np.int64))


def _seconds(executor: Executor, groups: int, rows: int, cross: CrossContext | None) -> float:
    positions = np.arange(rows, dtype=np.int64)
    blocks = np.arange(blocks_for(rows), dtype=np.int64)
    batch = Batch(
        tokens=np.zeros(rows, dtype=np.int64),
        positions=positions,
        starts=np.array([0, rows], dtype=np.int64),
        tables=(blocks,) * groups,
        wanted=positions,
        cross=cross,
    )
    sampling = SamplingBatch()
    for row in range(rows):
        sampling.draw(row, row, GREEDY)
    began = time.perf_counter()
    execute(executor, batch, sampling)
    return time.perf_counter() - began
