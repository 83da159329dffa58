"""From settings to an engine that is ready: plan its memory, load, warm up. Each phase is timed."""

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from galley.engine.adapters import AdapterPool
from galley.engine.batching import BatchGatherer
from galley.engine.blocks import BlockPool
from galley.engine.draft_model import DraftModel
from galley.engine.encoder_cache import EncoderCache
from galley.engine.engine import Engine
from galley.engine.guessing import Guessing, proposers_of
from galley.engine.kv import KVCache
from galley.engine.load_draft import load_draft, read_draft
from galley.engine.memory import KVSize, plan_memory
from galley.engine.preparing import Preparing
from galley.engine.read_model import Model, read_model
from galley.engine.scheduler import Scheduler
from galley.engine.states import StateCache
from galley.engine.step_meter import Pauses, StepMeter
from galley.engine.warm_up import MEASURED_ROWS, measure_rows, warm_up
from galley.engine.weight_receipt import held_kinds, weight_receipt
from galley.engine_settings import EngineSettings
from galley.errors import DamagedWeights, EngineFailed, SettingsError
from galley.formats.gguf_file import is_gguf, split_files
from galley.grammar.matcher import Grammars
from galley.graph.adapters import with_adapters
from galley.machine import address_space_left, available_memory
from galley.model_info import ModelInfo, OnLedger
from galley.ops.executor import (
    Executor,
    ExecutorMemory,
    ExecutorOptions,
    choose_executor,
)
from galley.ops.measured_steps import measured_steps
from galley.ops.rows import check_isa
from galley.speculation.row_costs import RowCosts
from galley.types import OnPhase

log: Final = logging.getLogger("galley.engine")

T = TypeVar("T")


def load_engine(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> Engine:
    """Build the engine for the checkpoint in ``folder``, which may be a GGUF file.

    Args:
        settings: sizes and choices; ``settings.model`` is only the name here.
        folder: the checkpoint.
        on_phase: told (name, seconds) as each of "import", "load" and "warm-up" ends.
        pause: see :class:`galley.ops.executor.ExecutorOptions`.
        on_ledger: told what the model will take of the memory, before its weights are loaded.

    Raises:
        ModelError, SettingsError: the checkpoint or the settings cannot be used.
        EngineFailed: there is not enough memory; the message has three changes that would make it fit.
    """
    return retrying(folder, lambda: _load(settings, folder, on_phase, pause, on_ledger))


def retrying(folder: Path, load: Callable[[], T]) -> T:
    """What ``load`` makes of the checkpoint in ``folder``, the second time if packed weights were damaged.

    Raises:
        EngineFailed: memory ran out.
    """
    try:
        try:
            return load()
        except DamagedWeights:  # they are packed anew
            return load()
    except MemoryError as error:
        files = split_files(folder) if is_gguf(folder) else folder.glob("*.safetensors")
        needs = sum(path.stat().st_size for path in files) / 2**20
        left = min(available_memory(), address_space_left()) / 2**20
        raise EngineFailed(
            f"memory ran out while {folder} was loaded: its weights are {needs:.0f} MiB on disk, "
            f"{left:.0f} MiB are available now; allow more (container limit, ulimit -v), set quantize to "
            "int8 or int4, or kv_cache_tokens to less"
        ) from error


def _load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None,
    pause: Callable[[], None] | None,
    on_ledger: OnLedger | None,
) -> Engine:
    phases: dict[str, float] = {}
    clock = StartPhases(phases, on_phase)
    executor_name, factory = choose_executor(settings.executor, settings.device)
    check_isa()
    clock.end("import")
    model = read_model(settings, folder, executor_name)
    checkpoint, program, weights, options, speech, _ = model
    name, family = settings.model or folder.name, str(checkpoint.config["model_type"])
    draft = read_draft(settings, model, folder, executor_name, factory)
    if draft is not None:
        program = draft.guessed.program
    if settings.adapter_slots:
        if speech is not None:
            raise SettingsError(
                f"max_adapters is {settings.adapter_slots}, but {name} hears speech, and adapters are "
                "for text models: leave it out"
            )
        program = with_adapters(program)
        options = dataclasses.replace(
            options, adapters=settings.adapter_slots, adapter_rank=settings.adapter_rank
        )

    def memory_of(options: ExecutorOptions) -> ExecutorMemory:
        memory = factory.memory(program, weights, options)
        return memory if draft is None else draft.beside(memory)

    kv, ledger = plan_memory(
        settings,
        program,
        options,
        executor_name,
        memory_of,
        name=name,
        family=family,
    )
    if on_ledger is not None:
        on_ledger(ledger)
    pauses = None if pause is None else Pauses(pause)
    options = dataclasses.replace(options, expert_cache_bytes=ledger.experts)
    executor = factory(program, weights, dataclasses.replace(options, pause=pauses))
    mine = 0 if draft is None else draft.memory.kv_block
    assert executor.kv_bytes_per_block() + mine == kv.block_bytes
    clock.end("load")
    assert executor.bytes_per_state() == kv.state_bytes
    executor.allocate_kv(kv.blocks, kv.states)
    pool = BlockPool(kv.blocks)
    states = StateCache(kv.states, interval=settings.state_interval) if kv.states else None
    cache = KVCache(pool, prefix_cache=settings.prefix_cache, groups=kv.groups, states=states)
    encoder_cache = EncoderCache(pool, sharing=settings.prefix_cache)
    draft_model: DraftModel | None = None
    if draft is not None:
        draft_model = load_draft(
            draft,
            factory,
            cache,
            encoder_cache,
            vocab_size=program.vocab_size,
            max_rows=settings.max_batch_tokens,
            pause=pauses,
        )
    warm_up(executor, program, speech)
    guessing = _guessing(settings, executor, model, kv, draft_model)
    clock.end("warm-up")
    phases["ready"] = sum(phases.values())
    info = ModelInfo(
        name=name,
        path=str(folder),
        family=family,
        tasks=("score", *(("generate",) if speech is None else speech.tasks_done)),
        executor=executor_name,
        dtype=options.dtype,
        quantize=options.quantize,
        activations=executor.activations,
        kv_dtype=options.kv_dtype,
        vocab_size=program.vocab_size,
        max_model_len=kv.max_model_len,
        kv_cache_tokens=kv.tokens,
        eos_token_ids=checkpoint.eos_token_ids,
        defaults=settings.with_own(checkpoint.defaults),
        costs=executor.step_costs(),
        phases=phases,
        speech=speech,
        ledger=ledger,
        grammars=speech is None,
        weights=weight_receipt(
            checkpoint, program, held_kinds(executor_name, program, weights, options)
        ),
        adapters=options.adapters,
        recurrent=bool(program.states),
    )
    scheduler = Scheduler(
        cache,
        encoder_cache,
        max_batch_tokens=settings.max_batch_tokens,
        max_running=settings.running_limit,
        priority_steps=settings.priority_steps,
        gatherer=_gatherer(settings),
        guess=guessing.guess,
    )
    steps = settings.priority_steps
    meter = StepMeter(None if pauses is None else lambda: pauses.seconds)
    adapters = None
    if options.adapters:
        shapes = {name: program.shapes[name] for name in program.adapted}
        adapters = AdapterPool(executor, shapes, slots=options.adapters, rank=options.adapter_rank)
    grammars = Grammars(folder, program.vocab_size, checkpoint.eos_token_ids)
    return Engine(
        executor,
        cache,
        encoder_cache,
        scheduler,
        info,
        priority_steps=steps,
        meter=meter,
        guessing=guessing,
        preparing=Preparing(grammars, adapters),
    )


def _guessing(
    settings: EngineSettings,
    executor: Executor,
    model: Model,
    kv: KVSize,
    draft_model: DraftModel | None,
) -> Guessing:
    """Nothing is guessed where a state has taken tokens in for good."""
    program = model.program
    proposers = proposers_of(settings)
    most = min(settings.logit_rows, kv.max_model_len, kv.tokens)
    nobody = not proposers and draft_model is None
    if proposers and program.states:
        log.info("nothing is guessed: states of recurrent layers cannot take tokens back")
    if nobody or program.states or most < MEASURED_ROWS[1]:
        return Guessing()
    groups = len(program.kv_groups)
    measured = measured_steps(
        executor,
        model.options,
        f"{most} rows",
        lambda: measure_rows(executor, groups, most, model.speech, blocks=kv.blocks),
    )
    return Guessing(proposers, RowCosts(measured), settings.logit_rows, draft_model)


def _gatherer(settings: EngineSettings) -> BatchGatherer | None:
    if settings.batching == "continuous":
        return None
    delay = settings.batching_delay if settings.batching == "static" else 0.0
    return BatchGatherer(settings.running_limit, delay)


class StartPhases:
    """Times the phases of an engine's start, one after the other."""

    def __init__(self, phases: dict[str, float], on_phase: OnPhase | None) -> None:
        self._phases = phases
        self._on_phase = on_phase
        self._last = time.monotonic()

    def end(self, name: str) -> None:
        """The phase of that name is over."""
        now = time.monotonic()
        self._phases[name] = now - self._last
        self._last = now
        if self._on_phase:
            self._on_phase(name, self._phases[name])
