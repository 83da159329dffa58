"""Reads and loads a draft model in addition to its target model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from galley.engine.draft_model import DraftModel
from galley.engine.encoder_cache import EncoderCache
from galley.engine.kv import KVCache
from galley.engine.read_model import Model, read_model
from galley.engine.warm_up import MEASURED_ROWS, measure_rows, warm_up
from galley.errors import SettingsError
from galley.formats.source import resolve_model
from galley.formats.vocabulary import first_difference
from galley.formats.weights import DenseWeight, Weight
from galley.models.speech import share_encoder
from galley.models.whisper import DECODER
from galley.ops.executor import ExecutorFactory, ExecutorMemory
from galley.ops.measured_steps import measured_steps
from galley.settings.engine import EngineSettings
from galley.speculation.row_costs import RowCosts
from galley.types import BLOCK_TOKENS
from galley.types.audio import SpeechInfo


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A draft model whose weights are mapped.

    Attributes:
        model: the input for the draft model's executor.
        memory: the memory that the executor will hold.
        group: KV group of the target model whose blocks will hold the draft model's keys and values.
        target: the target model, as it is to be loaded together with this one.
        shares_encoder: whether both have the same encoder, so that the target model's serves both.
    """

    model: Model
    memory: ExecutorMemory
    group: int
    target: Model
    shares_encoder: bool

    def with_draft(self, memory: ExecutorMemory) -> ExecutorMemory:
        """Return the memory that both models hold together."""
        mine = self.memory
        return dataclasses.replace(
            memory,
            weights=memory.weights + mine.weights,
            kv_block=memory.kv_block + mine.kv_block,
            row=memory.row + mine.row,
            logits=memory.logits + mine.logits,
            encoder=memory.encoder + mine.encoder,
            scratch=memory.scratch + mine.scratch,
        )


def read_draft(
    settings: EngineSettings,
    target: Model,
    folder: Path,
    executor: str,
    factory: ExecutorFactory,
) -> Draft | None:
    """Read the draft model that the settings name; return None if they name none.

    Args:
        settings: the engine's settings.
        target: the target model.
        folder: the target model's checkpoint.
        executor: name of the executor that runs both.
        factory: creates the executor.

    Raises:
        SettingsError: the draft model cannot draft for this target model.
        ModelError: the draft model's checkpoint cannot be used.
    """
    name = settings.draft_model
    if name is None:
        return None
    place = resolve_model(name)
    own = dataclasses.replace(
        settings,
        model=name,
        speculation="off",
        draft_model=None,
        max_model_len=None,
        experts="memory",
        expert_cache_bytes=None,
        device=settings.device.partition(",")[0],
        tensor_parallel=1,
        tensor_parallel_cpus=(),
        tensor_parallel_rank=(),
    )
    model = read_model(own, place, executor)
    model = model._replace(program=dataclasses.replace(model.program, aligner=None))
    program = target.program
    _check_audio(name, model.speech, target.speech)
    for what, one in (("draft_model " + name, model.program), ("the model", program)):
        if one.states:
            raise SettingsError(
                f"{what} has recurrent layers, which cannot undo rejected draft tokens; leave out "
                "draft_model"
            )
    if [group.window for group in model.program.kv_groups] != [0]:
        raise SettingsError(
            f"draft_model {name} has layers with a sliding window, which a draft model must not have"
        )
    whole = [g for g, group in enumerate(program.kv_groups) if not group.window]
    if not whole:
        raise SettingsError(
            "draft_model needs a model with at least one layer without a sliding window; leave it out"
        )
    if (difference := first_difference(folder, place)) is not None:
        raise SettingsError(f"draft_model {name} has a different vocabulary: {difference}")
    shares = _same_encoder(model, target)
    if shares:
        shared, draft = share_encoder(
            program, target.checkpoint.config, model.program, model.checkpoint.config
        )
        target, model = target._replace(program=shared), model._replace(program=draft)
    memory = factory.memory(model.program, model.weights, model.options)
    return Draft(model, memory, whole[0], target, shares)


def _same_encoder(one: Model, other: Model) -> bool:
    """Return whether both have exactly the same encoder weights, as Distil-Whisper and its teacher do."""
    if one.program.encoder is None or other.program.encoder is None:
        return False
    names, others = (
        {n: s for n, s in model.program.encoder.shapes.items() if not n.startswith(DECODER)}
        for model in (one, other)
        if model.program.encoder is not None
    )
    return names == others and all(
        _same_values(one.weights[name], other.weights[name]) for name in names
    )


def _same_values(one: Weight, other: Weight) -> bool:
    if not isinstance(one, DenseWeight) or not isinstance(other, DenseWeight):
        return False
    return one.dtype == other.dtype and np.array_equal(one.data, other.data)


def _check_audio(name: str, draft: SpeechInfo | None, target: SpeechInfo | None) -> None:
    """Check that both or neither are speech models, and that the target's audio suits the draft model.

    Raises:
        SettingsError: they do not match.
    """
    if (draft is None) != (target is None):
        which = (f"draft_model {name}", "the model")[draft is None]
        other = ("the model", f"draft_model {name}")[draft is None]
        raise SettingsError(f"{which} is a speech model and {other} is not")
    if draft is None or target is None:
        return
    for what in ("mels", "stride", "max_frames"):
        mine, theirs = getattr(draft, what), getattr(target, what)
        if mine < theirs if what == "max_frames" else mine != theirs:
            raise SettingsError(
                f"draft_model {name} has different audio features: {what} is {mine}, not {theirs}"
            )


def load_draft(
    draft: Draft,
    factory: ExecutorFactory,
    kv: KVCache,
    encoder_cache: EncoderCache,
    *,
    vocab_size: int,
    max_rows: int,
    pause: Callable[[], None] | None,
) -> DraftModel:
    """Pack the draft model's weights, allocate its keys and values, and measure its steps.

    Args:
        draft: the result of :func:`read_draft`.
        factory: creates its executor.
        kv: block tables of the target model.
        encoder_cache: block tables of the target model's encoder outputs.
        vocab_size: vocabulary size of the target model.
        max_rows: maximum number of rows in a step.
        pause: see :class:`galley.ops.executor.ExecutorOptions`.
    """
    program = draft.model.program
    options = dataclasses.replace(draft.model.options, pause=pause)
    executor = factory(program, draft.model.weights, options)
    assert executor.kv_bytes_per_block() == draft.memory.kv_block
    executor.allocate_kv(kv.pool.total)
    speech = draft.model.speech
    warm_up(executor, program, speech)
    most = min(MEASURED_ROWS[-1], max_rows, kv.pool.total * BLOCK_TOKENS, program.max_positions)
    most = max(most, MEASURED_ROWS[1])
    measured = measured_steps(
        executor,
        draft.model.options,
        f"{most} rows, sharing {draft.shares_encoder}",
        lambda: measure_rows(executor, 1, most, speech, blocks=kv.pool.total),
    )
    return DraftModel(
        executor,
        RowCosts(measured),
        kv,
        encoder_cache,
        group=draft.group,
        vocab_size=vocab_size,
        max_len=program.max_positions,
        max_rows=max_rows,
        shares_encoder=draft.shares_encoder,
    )
