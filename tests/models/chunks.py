"""An executor of a checkpoint, and its results for one sequence computed in chunks."""

from pathlib import Path
from typing import Any

import numpy as np

from galley.engine.loaders import load_engine
from galley.ops.batch import Batch, Ints
from galley.ops.executor import Executor, forward
from galley.settings.engine import DType, EngineSettings, ExecutorName
from galley.types import BLOCK_TOKENS


def executor_of(
    folder: Path, dtype: DType = "float32", executor: ExecutorName = "reference"
) -> Executor:
    settings = EngineSettings(
        model=str(folder),
        dtype=dtype,
        executor=executor,
        kv_cache_tokens=2048,
        threads=1,
        speculation="off",  # step times are only measured for speculation
    )
    return load_engine(settings, folder)._executor


def grouped(executor: Executor, tables: list[Ints]) -> tuple[Ints, ...]:
    """Return the tables of one KV group, and tables with separate blocks for each other group."""
    return tuple(table + 128 * g for g in range(executor.kv_groups) for table in tables)


def run_chunks(executor: Executor, ids: list[int], chunks: list[int], first_block: int) -> Any:
    """Return all logits of one sequence, computed in chunks, its KV from ``first_block`` on."""
    table = np.arange(first_block, first_block + -(-len(ids) // BLOCK_TOKENS))
    logits, begin = [], 0
    for count in chunks:
        end = begin + count
        logits.append(
            forward(
                executor,
                Batch(
                    tokens=np.array(ids[begin:end]),
                    positions=np.arange(begin, end),
                    starts=np.array([0, count]),
                    tables=grouped(executor, [table[: -(-end // BLOCK_TOKENS)]]),
                    wanted=np.arange(count),
                ),
            ).copy()
        )
        begin = end
    assert begin == len(ids)
    return np.concatenate(logits)
