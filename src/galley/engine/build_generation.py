"""Builds the engine of a model that generates tokens from text or audio."""

import dataclasses
import logging
from typing import Final

from galley.engine.adapters import AdapterPool
from galley.engine.batching import BatchGatherer
from galley.engine.blocks import BlockPool
from galley.engine.build_prefix_tier import TIER_BYTES, TierBuilder
from galley.engine.draft_model import DraftModel
from galley.engine.encoder_cache import EncoderCache
from galley.engine.engine import Engine
from galley.engine.kv import KVCache
from galley.engine.load_draft import Draft, load_draft, read_draft
from galley.engine.loading import Loading
from galley.engine.memory import KVSize, plan_memory
from galley.engine.preparing import Preparing
from galley.engine.scheduler import Scheduler
from galley.engine.speculation import EngineSpeculation, proposers_of
from galley.engine.states import StateCache
from galley.engine.warm_up import MEASURED_ROWS, measure_rows, warm_up
from galley.errors import SettingsError
from galley.grammar.matcher import Grammars
from galley.graph.adapters import with_adapters
from galley.graph.program import Program
from galley.ops.executor import Executor, ExecutorMemory, ExecutorOptions
from galley.ops.measured_steps import measured_steps
from galley.settings.engine import EngineSettings
from galley.speculation.row_costs import RowCosts
from galley.types.model_info import Ledger, TextInfo

log: Final = logging.getLogger("galley.engine")


def build_generation(loading: Loading) -> Engine:
    """Plan memory, load the weights, allocate the KV cache and warm up.

    Raises:
        ModelError, SettingsError: the checkpoint or the settings cannot be used.
        EngineFailed: there is not enough memory; the message has three changes that would make it fit.
    """
    settings, model = loading.settings, loading.model
    draft = read_draft(settings, model, loading.folder, loading.executor_name, loading.factory)
    program, options = _adapted(loading, model.program if draft is None else draft.target.program)
    kv, ledger = _planned(loading, program, options, draft)
    loading.announce(ledger)
    options = dataclasses.replace(options, expert_cache_bytes=ledger.experts)
    executor = loading.executor(program, options)
    mine = 0 if draft is None else draft.memory.kv_block
    assert executor.kv_bytes_per_block() + mine == kv.block_bytes
    assert executor.bytes_per_state() == kv.state_bytes
    executor.allocate_kv(kv.blocks, kv.states)
    cache, encoder_cache = _caches(settings, kv)
    tiers = TierBuilder.of(loading, program, options, executor, cache, ledger.isa)
    tier = tiers.on_disk(settings)
    draft_model: DraftModel | None = None
    if draft is not None:
        draft_model = load_draft(
            draft,
            loading.factory,
            cache,
            encoder_cache,
            vocab_size=program.vocab_size,
            max_rows=settings.max_batch_tokens,
            pause=loading.pauses,
        )
    warm_up(executor, program, model.speech)
    speculation = _speculation(loading, executor, kv, draft_model)
    loading.clock.end("warm-up")
    speech = model.speech
    info = loading.info(
        executor,
        program,
        options,
        ledger,
        TextInfo(
            vocab_size=program.vocab_size,
            max_model_len=kv.max_model_len,
            kv_cache_tokens=kv.tokens,
            grammars=speech is None,
            adapters=options.adapters,
            recurrent=bool(program.states),
        ),
        tasks=("score", *(("generate",) if speech is None else speech.tasks_done)),
        speech=speech,
    )
    grammars = Grammars(loading.folder, program.vocab_size, model.checkpoint.eos_token_ids)
    return Engine(
        executor,
        cache,
        encoder_cache,
        _scheduler(settings, cache, encoder_cache, speculation),
        info,
        priority_steps=settings.priority_steps,
        meter=loading.meter,
        speculation=speculation,
        preparing=Preparing(grammars, _adapter_pool(executor, program, options), tier, tiers),
    )


def _adapted(loading: Loading, program: Program) -> tuple[Program, ExecutorOptions]:
    """Return the program and options with slots for LoRA adapters, if the settings request any."""
    settings, options = loading.settings, loading.model.options
    if not settings.adapter_slots:
        return program, options
    if loading.model.speech is not None:
        raise SettingsError(
            f"max_adapters is {settings.adapter_slots}, but {loading.name} is a speech model, and adapters "
            "are for text models; leave it out"
        )
    return with_adapters(program), dataclasses.replace(
        options, adapters=settings.adapter_slots, adapter_rank=settings.adapter_rank
    )


def _planned(
    loading: Loading, program: Program, options: ExecutorOptions, draft: Draft | None
) -> tuple[KVSize, Ledger]:
    def memory_of(options: ExecutorOptions) -> ExecutorMemory:
        memory = loading.factory.memory(program, loading.model.weights, options)
        if loading.settings.prefix_cache_dir:
            memory = dataclasses.replace(memory, scratch=memory.scratch + TIER_BYTES)
        return memory if draft is None else draft.with_draft(memory)

    return plan_memory(
        loading.settings,
        program,
        options,
        loading.executor_name,
        memory_of,
        name=loading.name,
        family=loading.family,
    )


def _caches(settings: EngineSettings, kv: KVSize) -> tuple[KVCache, EncoderCache]:
    pool = BlockPool(kv.blocks)
    states = StateCache(kv.states, interval=settings.state_interval) if kv.states else None
    cache = KVCache(pool, prefix_cache=settings.prefix_cache, groups=kv.groups, states=states)
    return cache, EncoderCache(pool, sharing=settings.prefix_cache)


def _scheduler(
    settings: EngineSettings,
    cache: KVCache,
    encoder_cache: EncoderCache,
    speculation: EngineSpeculation,
) -> Scheduler:
    return Scheduler(
        cache,
        encoder_cache,
        max_batch_tokens=settings.max_batch_tokens,
        max_running=settings.running_limit,
        priority_steps=settings.priority_steps,
        gatherer=_gatherer(settings),
        propose_drafts=speculation.propose_drafts,
    )


def _adapter_pool(
    executor: Executor, program: Program, options: ExecutorOptions
) -> AdapterPool | None:
    if not options.adapters:
        return None
    shapes = {name: program.shapes[name] for name in program.adapted}
    return AdapterPool(executor, shapes, slots=options.adapters, rank=options.adapter_rank)


def _speculation(
    loading: Loading, executor: Executor, kv: KVSize, draft_model: DraftModel | None
) -> EngineSpeculation:
    """Return the engine's speculation; it is disabled where a recurrent state cannot be rolled back."""
    settings, model = loading.settings, loading.model
    program = model.program
    proposers = proposers_of(settings)
    most = min(settings.logit_rows, kv.max_model_len, kv.tokens)
    unused = not proposers and draft_model is None
    if proposers and program.states:
        log.info("speculation is off: recurrent layers cannot undo rejected draft tokens")
    if unused or program.states or most < MEASURED_ROWS[1]:
        return EngineSpeculation()
    groups = len(program.kv_groups)
    measured = measured_steps(
        executor,
        model.options,
        f"{most} rows",
        lambda: measure_rows(executor, groups, most, model.speech, blocks=kv.blocks),
    )
    return EngineSpeculation(proposers, RowCosts(measured), settings.logit_rows, draft_model)


def _gatherer(settings: EngineSettings) -> BatchGatherer | None:
    if settings.batching == "continuous":
        return None
    delay = settings.batching_delay if settings.batching == "static" else 0.0
    return BatchGatherer(settings.running_limit, delay)
