"""Reads and loads a draft model beside the model that it guesses for."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from galley.config import EngineSettings
from galley.engine.draft_model import DraftModel
from galley.engine.kv import KVCache
from galley.engine.read_model import Model, read_model
from galley.engine.warm_up import MEASURED_ROWS, measure_rows, warm_up
from galley.errors import SettingsError
from galley.formats.source import resolve_model
from galley.formats.vocabulary import first_difference
from galley.graph.program import Program
from galley.ops.executor import ExecutorFactory, ExecutorMemory
from galley.speculation.row_costs import RowCosts


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A draft model whose weights are mapped.

    Attributes:
        model: what its executor is made of.
        memory: what that will hold.
        group: KV group of the other model in whose blocks its keys and values will lie.
    """

    model: Model
    memory: ExecutorMemory
    group: int

    def beside(self, memory: ExecutorMemory) -> ExecutorMemory:
        """What both models hold."""
        mine = self.memory
        return dataclasses.replace(
            memory,
            weights=memory.weights + mine.weights,
            kv_block=memory.kv_block + mine.kv_block,
            row=memory.row + mine.row,
            logits=memory.logits + mine.logits,
            scratch=memory.scratch + mine.scratch,
        )


def read_draft(
    settings: EngineSettings,
    program: Program,
    folder: Path,
    executor: str,
    factory: ExecutorFactory,
) -> Draft | None:
    """The draft model that the settings name, if they do.

    Args:
        settings: of the engine.
        program: of the model that is guessed for.
        folder: its checkpoint.
        executor: name of what runs both.
        factory: makes it.

    Raises:
        SettingsError: it cannot guess for this model.
        ModelError: its checkpoint cannot be used.
    """
    name = settings.draft_model
    if name is None:
        return None
    place = resolve_model(name)
    own = dataclasses.replace(
        settings, model=name, speculation="off", draft_model=None, max_model_len=None
    )
    model = read_model(own, place, executor)
    for what, one in (("draft_model " + name, model.program), ("the model", program)):
        if one.encoder is not None:
            raise SettingsError(f"{what} is a speech model: draft_model is for text models")
        if any(group.state_blocks for group in one.kv_groups):
            raise SettingsError(
                f"{what} keeps a state that cannot take tokens back: leave draft_model out"
            )
    if [group.window for group in model.program.kv_groups] != [0]:
        raise SettingsError(
            f"draft_model {name} has layers with a sliding window: a draft model must keep all tokens"
        )
    whole = [g for g, group in enumerate(program.kv_groups) if not group.window]
    if not whole:
        raise SettingsError(
            "draft_model needs a model that keeps all tokens in some of its layers: leave it out"
        )
    if (difference := first_difference(folder, place)) is not None:
        raise SettingsError(f"draft_model {name} has another vocabulary: {difference}")
    return Draft(model, factory.memory(model.program, model.weights, model.options), whole[0])


def load_draft(
    draft: Draft,
    factory: ExecutorFactory,
    kv: KVCache,
    *,
    vocab_size: int,
    max_rows: int,
    pause: Callable[[], None] | None,
) -> DraftModel:
    """Pack its weights, make room for its keys and values, and measure its steps.

    Args:
        draft: what :func:`read_draft` has read.
        factory: of its executor.
        kv: block tables of the other model.
        vocab_size: of the other model.
        max_rows: of a step.
        pause: see :class:`galley.ops.executor.ExecutorOptions`.
    """
    program = draft.model.program
    options = dataclasses.replace(draft.model.options, pause=pause)
    executor = factory(program, draft.model.weights, options)
    assert executor.kv_bytes_per_block() == draft.memory.kv_block
    executor.allocate_kv(kv.pool.total)
    warm_up(executor, program, None)
    most = min(MEASURED_ROWS[-1], max_rows, kv.pool.total * 16, program.max_positions)
    return DraftModel(
        executor,
        RowCosts(measure_rows(executor, 1, max(most, MEASURED_ROWS[1]))),
        kv,
        group=draft.group,
        vocab_size=vocab_size,
        max_len=program.max_positions,
        max_rows=max_rows,
    )
