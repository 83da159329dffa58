"""From settings to an engine that is ready: load, size the KV cache, warm up. Each phase is timed."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from galley.audio import SpeechInfo
from galley.config import EngineSettings
from galley.engine.batching import BatchGatherer
from galley.engine.blocks import BlockPool
from galley.engine.encoder_cache import EncoderCache
from galley.engine.engine import Engine
from galley.engine.kv import KVCache
from galley.engine.scheduler import Scheduler
from galley.errors import DamagedWeights, EngineFailed, SettingsError
from galley.formats.reader import CheckpointReader, open_checkpoint
from galley.formats.weights import DENSE_KINDS, Weights
from galley.graph.program import KVGroup, Program
from galley.machine import available_cores, available_memory
from galley.models.registry import build_program
from galley.models.speech import read_speech, with_aligner
from galley.models.surplus import check_surplus
from galley.ops.executor import (
    Batch,
    CrossContext,
    EncoderBatch,
    Executor,
    ExecutorOptions,
    choose_executor,
)
from galley.ops.rows import check_isa
from galley.ops.sampling import SamplingBatch
from galley.types import BLOCK_TOKENS, ModelInfo, OnPhase, blocks_for


def load_engine(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
) -> Engine:
    """Build the engine for the checkpoint in ``folder``.

    Args:
        settings: sizes and choices; ``settings.model`` is only the name here.
        folder: the checkpoint.
        on_phase: told (name, seconds) as each of "import", "load" and "warm-up" ends.
        pause: see :class:`galley.ops.executor.ExecutorOptions`.

    Raises:
        ModelError, SettingsError: the checkpoint or the settings cannot be used.
        EngineFailed: there is not enough memory.
    """
    try:
        try:
            return _load(settings, folder, on_phase, pause)
        except DamagedWeights:  # they are packed anew
            return _load(settings, folder, on_phase, pause)
    except MemoryError as error:
        needs = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 2**20
        raise EngineFailed(
            f"memory ran out while {folder} was loaded: its weights are {needs:.0f} MiB on disk, "
            f"{available_memory() / 2**20:.0f} MiB are available now; allow more (container limit, ulimit "
            "-v), set quantize to int8 or int4, or kv_cache_tokens to less"
        ) from error


def _load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None,
    pause: Callable[[], None] | None,
) -> Engine:
    phases: dict[str, float] = {}
    clock = _Phases(phases, on_phase)
    executor_name, factory = choose_executor(settings.executor, settings.device)
    check_isa()
    clock.end("import")
    checkpoint, program, weights, options, speech = read_model(settings, folder, executor_name)
    executor = factory(program, weights, dataclasses.replace(options, pause=pause))
    clock.end("load")
    max_model_len = _max_model_len(settings, program)
    groups = _kv_groups(program, executor.kv_bytes_per_block())
    encoder_blocks = 0 if speech is None else blocks_for(speech.max_rows)
    blocks = _kv_blocks(settings, groups, max_model_len, encoder_blocks, executor)
    executor.allocate_kv(blocks)
    _warm_up(executor, program, speech)
    clock.end("warm-up")
    phases["ready"] = sum(phases.values())
    info = ModelInfo(
        name=settings.model or folder.name,
        path=str(folder),
        family=str(checkpoint.config["model_type"]),
        tasks=("score", *(("generate",) if speech is None else speech.tasks_done)),
        executor=executor_name,
        dtype=options.dtype,
        quantize=options.quantize,
        activations=executor.activations,
        kv_dtype=options.kv_dtype,
        vocab_size=program.vocab_size,
        max_model_len=max_model_len,
        kv_cache_tokens=_tokens_in(blocks, groups),
        eos_token_ids=checkpoint.eos_token_ids,
        defaults=checkpoint.defaults,
        costs=executor.step_costs(),
        phases=phases,
        speech=speech,
    )
    pool = BlockPool(blocks)
    kv = KVCache(pool, prefix_cache=settings.prefix_cache, groups=groups)
    encoder_cache = EncoderCache(pool, sharing=settings.prefix_cache)
    scheduler = Scheduler(
        kv,
        encoder_cache,
        max_batch_tokens=settings.max_batch_tokens,
        max_running=settings.running_limit,
        priority_steps=settings.priority_steps,
        gatherer=_gatherer(settings),
    )
    steps = settings.priority_steps
    return Engine(executor, kv, encoder_cache, scheduler, info, priority_steps=steps)


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


def _max_model_len(settings: EngineSettings, program: Program) -> int:
    wanted = settings.max_model_len or program.max_positions
    if wanted > program.max_positions:
        raise SettingsError(
            f"max_model_len {wanted} exceeds the model's context of {program.max_positions} tokens"
        )
    return wanted


def _kv_groups(program: Program, block_bytes: int) -> tuple[KVGroup, ...]:
    """The groups of layers that keep tokens, and one of layers that keep a state, if there are any."""
    if not program.state_bytes:
        return program.kv_groups
    return (*program.kv_groups, KVGroup(state_blocks=-(-program.state_bytes // block_bytes)))


def _tokens_in(blocks: int, groups: Sequence[KVGroup]) -> int:
    """How many tokens of a single sequence so many blocks hold, over all groups."""
    states = sum(group.state_blocks for group in groups)
    tables = sum(not group.state_blocks for group in groups)
    return (blocks - states) // tables * BLOCK_TOKENS


def _kv_blocks(
    settings: EngineSettings,
    groups: Sequence[KVGroup],
    max_model_len: int,
    encoder_blocks: int,
    executor: Executor,
) -> int:
    """As asked, or what the memory share holds, but no more than all running sequences can fill.

    Args:
        settings: of the cache.
        groups: in each of which a sequence has a block table.
        max_model_len: the most tokens of one sequence.
        encoder_blocks: the most that the encoder output of one sequence takes.
        executor: whose blocks they are.

    Raises:
        EngineFailed: there is no room for one sequence, or not for what was asked.
    """

    def needed_for(tokens: int) -> int:
        return sum(group.blocks_for(tokens) for group in groups)

    block_bytes = executor.kv_bytes_per_block()
    device_memory = executor.free_device_memory()
    left = available_memory() if device_memory is None else device_memory
    if settings.kv_cache_tokens is not None:
        blocks = needed_for(settings.kv_cache_tokens)
        needed = blocks * block_bytes
        if needed > left:
            raise EngineFailed(
                f"kv_cache_tokens {settings.kv_cache_tokens} needs {needed / 2**20:.0f} MiB, "
                f"{left / 2**20:.0f} MiB are available"
            )
    else:
        affordable = int(left * settings.kv_memory_fraction) // block_bytes
        if affordable < needed_for(1):
            raise EngineFailed("no memory is left for the KV cache after loading the weights")
        blocks = min(
            settings.running_limit * (needed_for(max_model_len) + encoder_blocks), affordable
        )
    if blocks <= encoder_blocks:
        raise EngineFailed(
            f"a KV cache of {blocks * BLOCK_TOKENS} tokens does not hold one encoder input, which takes "
            f"{encoder_blocks * BLOCK_TOKENS}, and its transcript; set kv_cache_tokens to more"
        )
    return blocks


def _warm_up(executor: Executor, program: Program, speech: SpeechInfo | None) -> None:
    """One token through everything, so that lazy initialisation does not fall on the first request.

    It writes to block 0, and one row of an encoder output to block 1, which no request has yet.
    """
    zero = np.zeros(1, dtype=np.int64)
    one = np.ones(1, dtype=np.int64)
    starts = np.array([0, 1], dtype=np.int64)
    cross, inputs = None, None
    if speech is not None:
        silence = np.zeros((1, speech.mels), dtype=np.float32)
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
    executor.execute(batch, SamplingBatch())
