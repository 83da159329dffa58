"""From settings to an engine that makes vectors of texts: plan its memory, load, warm up."""

import dataclasses
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

from galley.engine.embedding_engine import EmbeddingEngine
from galley.engine.load import StartPhases, retrying
from galley.engine.memory import plan_without_cache
from galley.engine.read_model import Model, read_model
from galley.engine.step_meter import Pauses, StepMeter
from galley.engine.weight_receipt import held_kinds, weight_receipt
from galley.engine_settings import EngineSettings
from galley.errors import SettingsError
from galley.model_info import EmbeddingInfo, ModelInfo, OnLedger
from galley.ops.executor import Batch, Executor, choose_executor, forward
from galley.ops.rows import check_isa
from galley.types import OnPhase

_OF_GENERATION: Final = {
    "quality_gate": "",
    "draft_model": None,
    "batching": "continuous",
    "experts": "memory",
}
"""Settings with their values if they are left out, that models of embeddings have no use for."""


def load_embedding(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> EmbeddingEngine:
    """Build the engine for the checkpoint of embeddings, or the reranker, in ``folder``.

    Settings of a KV cache change nothing: there is none. Arguments are those of
    :func:`galley.engine.load.load_engine`.

    Raises:
        ModelError, SettingsError: the checkpoint or the settings cannot be used.
        EngineFailed: there is not enough memory.
    """
    for name, unset in _OF_GENERATION.items():
        value = getattr(settings, name)
        if value != unset:
            raise SettingsError(
                f"{name} is {value!r}, but {settings.model or folder.name} makes vectors of texts and "
                "writes none: leave it out for this model"
            )
    return retrying(folder, lambda: _load(settings, folder, on_phase, pause, on_ledger))


def _load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None,
    pause: Callable[[], None] | None,
    on_ledger: OnLedger | None,
) -> EmbeddingEngine:
    phases: dict[str, float] = {}
    clock = StartPhases(phases, on_phase)
    name, factory = choose_executor(settings.executor, settings.device)
    check_isa()
    clock.end("import")
    model = read_model(settings, folder, name)
    checkpoint, program, weights, options, _, head = model
    assert head is not None
    longest = min(program.max_positions, head.max_tokens or program.max_positions)
    max_tokens, ledger = plan_without_cache(
        settings,
        program,
        options,
        name,
        lambda chosen: factory.memory(program, weights, chosen),
        name=settings.model or folder.name,
        family=str(checkpoint.config["model_type"]),
        longest=longest,
        all_rows=head.all_rows,
    )
    if on_ledger is not None:
        on_ledger(ledger)
    pauses = None if pause is None else Pauses(pause)
    executor = factory(program, weights, dataclasses.replace(options, pause=pauses))
    clock.end("load")
    executor.allocate_kv(0)
    _warm_up(executor)
    clock.end("warm-up")
    phases["ready"] = sum(phases.values())
    info = ModelInfo(
        name=settings.model or folder.name,
        path=str(folder),
        family=ledger.family,
        tasks=(head.task,),
        executor=name,
        dtype=options.dtype,
        quantize=options.quantize,
        activations=executor.activations,
        kv_dtype=options.kv_dtype,
        vocab_size=program.token_ids,
        max_model_len=max_tokens,
        kv_cache_tokens=0,
        eos_token_ids=checkpoint.eos_token_ids,
        defaults=checkpoint.defaults,
        costs=executor.step_costs(),
        phases=phases,
        ledger=ledger,
        weights=weight_receipt(checkpoint, program, held_kinds(name, program, weights, options)),
        embedding=_described(model),
    )
    return EmbeddingEngine(
        executor,
        head,
        info,
        max_batch_tokens=settings.max_batch_tokens,
        priority_steps=settings.priority_steps,
        meter=StepMeter(None if pauses is None else lambda: pauses.seconds),
    )


def _described(model: Model) -> EmbeddingInfo:
    head, program = model.head, model.program
    assert head is not None
    types = [op.tensor("weight") for op in program.ops if op.name == "embed_types"]
    return EmbeddingInfo(
        pooling="+".join(head.pooling),
        normalized=head.normalize,
        width=head.width(program.vocab_size),
        dimensions=head.dimensions,
        prompts=dict(head.prompts or {}),
        default_prompt=head.default_prompt,
        pair_types=any(program.shapes[name][0] > 1 for name in types),
    )


def _warm_up(executor: Executor) -> None:
    """One token through everything, so that lazy initialisation does not fall on the first text."""
    zero, starts = array("q", [0]), array("q", [0, 1])
    forward(executor, Batch(zero, zero, starts, (), zero))
