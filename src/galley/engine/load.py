"""From settings to an engine that is ready: plan its memory, load, warm up. Each phase is timed."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from galley.audio import SpeechInfo
from galley.config import EngineSettings
from galley.engine.batching import BatchGatherer
from galley.engine.blocks import BlockPool
from galley.engine.encoder_cache import EncoderCache
from galley.engine.engine import Engine
from galley.engine.guessing import Guessing, proposers_of
from galley.engine.kv import KVCache
from galley.engine.memory import KVSize, plan_memory
from galley.engine.scheduler import Scheduler
from galley.engine.step_meter import Pauses, StepMeter
from galley.engine.warm_up import MEASURED_ROWS, measure_rows, warm_up
from galley.errors import DamagedWeights, EngineFailed
from galley.formats.gguf_file import is_gguf, split_files
from galley.formats.reader import CheckpointReader, open_checkpoint
from galley.formats.weights import DENSE_KINDS, Weights
from galley.grammar.matcher import Grammars
from galley.graph.program import Program
from galley.machine import address_space_left, available_cores, available_memory
from galley.models.registry import build_program
from galley.models.speech import read_speech, with_aligner
from galley.models.surplus import check_surplus
from galley.ops.executor import (
    Executor,
    ExecutorOptions,
    choose_executor,
)
from galley.ops.rows import check_isa
from galley.speculation.row_costs import RowCosts
from galley.types import ModelInfo, OnLedger, OnPhase


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
    try:
        try:
            return _load(settings, folder, on_phase, pause, on_ledger)
        except DamagedWeights:  # they are packed anew
            return _load(settings, folder, on_phase, pause, on_ledger)
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
    clock = _Phases(phases, on_phase)
    executor_name, factory = choose_executor(settings.executor, settings.device)
    check_isa()
    clock.end("import")
    checkpoint, program, weights, options, speech = read_model(settings, folder, executor_name)
    name, family = settings.model or folder.name, str(checkpoint.config["model_type"])
    kv, ledger = plan_memory(
        settings,
        program,
        options,
        executor_name,
        lambda options: factory.memory(program, weights, options),
        name=name,
        family=family,
    )
    if on_ledger is not None:
        on_ledger(ledger)
    pauses = None if pause is None else Pauses(pause)
    executor = factory(program, weights, dataclasses.replace(options, pause=pauses))
    assert executor.kv_bytes_per_block() == kv.block_bytes
    clock.end("load")
    executor.allocate_kv(kv.blocks)
    warm_up(executor, program, speech)
    guessing = _guessing(settings, executor, program, kv)
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
        defaults=checkpoint.defaults,
        costs=executor.step_costs(),
        phases=phases,
        speech=speech,
        ledger=ledger,
        grammars=speech is None,
    )
    pool = BlockPool(kv.blocks)
    cache = KVCache(pool, prefix_cache=settings.prefix_cache, groups=kv.groups)
    encoder_cache = EncoderCache(pool, sharing=settings.prefix_cache)
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
        grammars=grammars,
    )


def _guessing(
    settings: EngineSettings, executor: Executor, program: Program, kv: KVSize
) -> Guessing:
    """Nothing is guessed for speech, nor where a state has taken tokens in for good."""
    proposers = proposers_of(settings)
    most = min(settings.logit_rows, kv.max_model_len, kv.tokens)
    stateful = any(group.state_blocks for group in program.kv_groups)
    if not proposers or program.encoder is not None or stateful or most < MEASURED_ROWS[1]:
        return Guessing()
    measured = measure_rows(executor, len(program.kv_groups), most)
    return Guessing(proposers, RowCosts(measured), settings.logit_rows)


def _gatherer(settings: EngineSettings) -> BatchGatherer | None:
    if settings.batching == "continuous":
        return None
    delay = settings.batching_delay if settings.batching == "static" else 0.0
    return BatchGatherer(settings.running_limit, delay)


class Model(NamedTuple):
    """All that an executor is made of. ``weights`` are views of the checkpoint's files.

    ``speech`` is None for a text model.
    """

    checkpoint: CheckpointReader
    program: Program
    weights: Weights
    options: ExecutorOptions
    speech: SpeechInfo | None


def read_model(settings: EngineSettings, folder: Path, executor: str = "cpu") -> Model:
    """Trace the model in ``folder`` and map its weights, for the executor of that name.

    Raises:
        ModelError: the checkpoint cannot be used.
    """
    checkpoint = open_checkpoint(folder)
    tensors = checkpoint.weights()
    program = build_program(checkpoint.config, tensors)
    checkpoint.check_token_ids(program.vocab_size)
    speech = read_speech(checkpoint.config, checkpoint.generation, program)
    if speech is not None:
        program = with_aligner(program, checkpoint.config, speech)
    weights = program.take_weights(tensors, folder=str(folder))
    check_surplus(program, tensors, checkpoint.config, folder=str(folder))
    options = _executor_options(settings, executor, checkpoint, weights, hears=speech is not None)
    return Model(checkpoint, program, weights, options, speech)


class _Phases:
    def __init__(self, phases: dict[str, float], on_phase: OnPhase | None) -> None:
        self._phases = phases
        self._on_phase = on_phase
        self._last = time.monotonic()

    def end(self, name: str) -> None:
        now = time.monotonic()
        self._phases[name] = now - self._last
        self._last = now
        if self._on_phase:
            self._on_phase(name, self._phases[name])


def _executor_options(
    settings: EngineSettings,
    executor: str,
    checkpoint: CheckpointReader,
    weights: Weights,
    *,
    hears: bool,
) -> ExecutorOptions:
    """What is left to choose follows the checkpoint: dtype its matrices, quantize and kv_dtype dtype.

    Where nothing asks for float32 and the weights are rounded, so are keys and values. Those of audio are
    integers beside integers: each token of a transcript reads them from end to end.
    """
    dtype: str = settings.dtype
    if dtype == "auto":
        infos = [weights.info(name) for name in weights]
        dense = {info.kind for info in infos if len(info.shape) == 2 and info.kind.is_dense}
        dtype = "bfloat16" if dense == {DENSE_KINDS["BF16"]} else "float32"
    quantize: str = settings.quantize
    if quantize == "auto":
        quantize = "bf16" if dtype == "bfloat16" else "float32"
    kv_dtype: str = settings.kv_dtype
    if kv_dtype == "auto":
        exact = "float32" in (settings.dtype, settings.activations, quantize)
        rounded = "int8" if hears and quantize in ("int8", "int4") else "bfloat16"
        kv_dtype = rounded if executor == "cpu" and not exact else dtype
    return ExecutorOptions(
        dtype=dtype,
        quantize=quantize,
        kv_dtype=kv_dtype,
        device=settings.device,
        threads=settings.threads or available_cores(),
        activations=settings.activations,
        disable_pass=settings.disable_pass,
        weight_cache=checkpoint if settings.weight_cache else None,
    )
