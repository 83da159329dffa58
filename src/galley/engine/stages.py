"""The effect of each pass over a program: its cost by count, and its time by measurement."""

import dataclasses
import gc
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from galley.engine.read_model import Model
from galley.errors import SettingsError
from galley.graph.passes import PASSES, enabled_passes
from galley.graph.program import Program
from galley.graph.quantize_inputs import quantize_inputs
from galley.ops.batch import Batch, CrossContext, EncoderBatch, Ints
from galley.ops.choice import executor_factory
from galley.ops.cpu import CpuExecutor
from galley.ops.cpu_plan import planned
from galley.ops.executor import Executor, encode, execute
from galley.ops.isa import choose_isa
from galley.ops.kinds import input_steps
from galley.ops.lowering import Cost
from galley.ops.sampling import SamplingBatch
from galley.types import BLOCK_TOKENS, blocks_for

CONTEXT: Final = 64
"""Tokens before that of the measured step; for models of whole texts, the text's length."""
_WARM_UPS: Final = 3


@dataclass(frozen=True, slots=True)
class Stage:
    """A program at one point of the sequence of passes.

    Attributes:
        name: the pass that ran last; "" before the first.
        program: the program after that pass.
        cost: the cost of one row of the program.
        seconds: median time of a decoding step with one row; for a model that makes vectors or scores, of
            a text.
    """

    name: str
    program: Program
    cost: Cost
    seconds: float


def stage_names(model: Model) -> list[str]:
    """Return the names of the stages that :func:`measure_stages` yields, in order.

    Raises:
        SettingsError: a disabled pass does not exist.
    """
    return ["", *enabled_passes(model.options.disable_pass)]


def measure_stages(model: Model, *, repeats: int) -> Iterator[Stage]:
    """Yield the traced program, then the program after each enabled pass, each built and timed anew.

    A pass that changes nothing inherits the figures of the stage before it. The cache of packed weights
    is not touched, because stages merge layers differently from the served model.

    Raises:
        SettingsError: a disabled pass does not exist.
    """
    disabled, names = model.options.disable_pass, stage_names(model)
    isa = choose_isa(os.environ)
    program, _, activations = planned(model.program, model.weights, model.options, isa)
    steps = input_steps(program, model.weights, model.options.activations)
    program = quantize_inputs(program, activations, steps)
    stage: Stage | None = None
    for i, name in enumerate(names):
        program = PASSES[name](program) if name else program
        if stage is not None and program == stage.program:
            stage = dataclasses.replace(stage, name=name)
        else:
            left_out = (*disabled, *names[i + 1 :])
            options = dataclasses.replace(model.options, disable_pass=left_out, weight_cache=None)
            executor = CpuExecutor(model.program, model.weights, options)
            stage = Stage(name, program, executor.cost, _step_seconds(executor, model, repeats))
            del executor
        yield stage


def measure_eager(model: Model, *, repeats: int) -> float | None:
    """Return the seconds of the same step on the reference executor, op by op; None if torch is missing.

    It computes in the same type in which it keeps keys and values.
    """
    try:
        factory = executor_factory("reference")
    except SettingsError:
        return None
    dtype = "float32" if model.options.weight_dtype == "float32" else model.options.dtype
    options = dataclasses.replace(
        model.options, dtype=dtype, activations="auto", kv_dtype=dtype, disable_pass=()
    )
    seconds = _step_seconds(factory(model.program, model.weights, options), model, repeats)
    # The executor's table of its own methods is a reference cycle that would keep its weights alive.
    gc.collect()
    return seconds


def _step_seconds(executor: Executor, model: Model, repeats: int) -> float:
    """Return the median time over ``repeats`` executions of the step that is typical of the model."""
    step = _decoding_step(executor, model) if model.head is None else _text_step(executor, model)
    nothing = SamplingBatch()
    seconds = []
    for _ in range(_WARM_UPS + repeats):
        begin = time.perf_counter()
        execute(executor, step, nothing)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[_WARM_UPS:])


def _decoding_step(executor: Executor, model: Model) -> Batch:
    """Compute a long context and return the step of one more row, with the longest encoder input."""
    context = min(CONTEXT, model.program.max_positions - 1)
    blocks, encoder = context // BLOCK_TOKENS + 1, model.program.encoder
    rows = 0 if encoder is None else encoder.max_rows
    groups = len(model.program.kv_groups)
    executor.allocate_kv(blocks + blocks_for(rows), states=1)
    cross = None
    if encoder is not None:
        cross = CrossContext((np.arange(blocks, blocks + blocks_for(rows)),), np.array([rows]))
        silence = np.zeros((encoder.max_positions, encoder.mels), dtype=np.float32)
        encode(executor, EncoderBatch(silence, np.array([0, len(silence)]), cross.tables))
    tokens = np.arange(context + 1) % model.program.vocab_size
    execute(
        executor,
        _batch(tokens[:-1], first=0, blocks=blocks, groups=groups, cross=cross),
        SamplingBatch(),
    )
    return _batch(tokens[-1:], first=context, blocks=blocks, groups=groups, cross=cross)


def _text_step(executor: Executor, model: Model) -> Batch:
    """Return a step that computes one text and selects the rows from which its vector or score is made."""
    assert model.head is not None
    executor.allocate_kv(0)
    rows = np.arange(min(CONTEXT, model.program.max_positions))
    return Batch(
        tokens=rows % model.program.token_ids,
        positions=rows,
        starts=np.array([0, len(rows)]),
        tables=(),
        wanted=rows if model.head.all_rows else rows[-1:],
    )


def _batch(
    tokens: Ints, *, first: int, blocks: int, groups: int, cross: CrossContext | None
) -> Batch:
    """Return a batch of one sequence's tokens from position ``first``, whose last row is selected."""
    return Batch(
        tokens=tokens,
        positions=np.arange(first, first + len(tokens)),
        starts=np.array([0, len(tokens)]),
        tables=(np.arange(blocks),) * groups,
        wanted=np.array([len(tokens) - 1]),
        cross=cross,
    )
