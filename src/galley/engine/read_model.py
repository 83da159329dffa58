"""From a checkpoint to a traced program and mapped weights: everything that an executor is built from."""

import logging
import math
from pathlib import Path
from typing import Final, NamedTuple

from galley.formats.quantization import has_8_bit_kv
from galley.formats.reader import CheckpointReader, open_checkpoint
from galley.formats.weights import DENSE_KINDS, Weights
from galley.graph.program import Program
from galley.machine import available_cores
from galley.models.embedding import Head
from galley.models.registry import build_program
from galley.models.speech import read_speech, with_aligner
from galley.models.surplus import check_surplus
from galley.models.vector_models import UNREAD, read_vector_model
from galley.ops.choice import executor_of
from galley.ops.executor import ExecutorFactory, ExecutorOptions
from galley.settings.engine import EngineSettings
from galley.types.audio import SpeechInfo
from galley.types.weight_dtypes import INTEGERS

log: Final = logging.getLogger("galley.weights")


class Model(NamedTuple):
    """Everything that an executor is built from. ``weights`` are views of the checkpoint's files.

    ``speech`` is None for a text model; ``head`` is None for a model that makes no vectors or scores of
    texts.
    """

    checkpoint: CheckpointReader
    program: Program
    weights: Weights
    options: ExecutorOptions
    speech: SpeechInfo | None
    head: Head | None


def read_model(settings: EngineSettings, folder: Path, executor: str = "cpu") -> Model:
    """Trace the model in ``folder`` and map its weights, for the executor of that name.

    Raises:
        ModelError: the checkpoint cannot be used.
    """
    chosen = settings.dtype if settings.weight_dtype == "auto" else settings.weight_dtype
    keeps_floats = executor == "gpu" and settings.weight_dtype == "auto"
    checkpoint = open_checkpoint(folder, exact=chosen == "float32", keeps_floats=keeps_floats)
    tensors = checkpoint.weights()
    for note in tensors.notes:
        log.info("%s", note)
    vectors = read_vector_model(checkpoint, tensors)
    if vectors is not None:
        program, head = vectors
        speech = None
        checkpoint.check_token_ids(program.token_ids)
    else:
        program = build_program(checkpoint.config, tensors, context=settings.max_model_len)
        head = None
        checkpoint.check_token_ids(program.vocab_size)
        speech = read_speech(checkpoint.config, checkpoint.generation, program)
    if speech is not None:
        program = with_aligner(program, checkpoint.config, speech)
    weights = program.take_weights(tensors, folder=str(folder))
    unread = None if head is None else UNREAD
    check_surplus(program, tensors, checkpoint.config, folder=str(folder), unread=unread)
    options = _executor_options(
        settings, executor, checkpoint, weights, program.routers, is_speech=speech is not None
    )
    return Model(checkpoint, program, weights, options, speech, head)


def _executor_options(
    settings: EngineSettings,
    executor: str,
    checkpoint: CheckpointReader,
    weights: Weights,
    routers: frozenset[str],
    *,
    is_speech: bool,
) -> ExecutorOptions:
    """Derive the options left at "auto": dtype from the matrices, weight_dtype and kv_dtype from dtype.

    The router matrices, which choose and weight experts, do not count when determining the type of most
    matrices: GGUF files store them in float32, whatever their original type.

    Unless float32 is requested, rounded weights imply rounded keys and values. With integer weights,
    those of audio are integers, because each token of a transcript reads all of them. So are those of a
    checkpoint that was made for 8-bit keys and values.
    """
    dtype: str = settings.dtype
    infos = [weights.info(name) for name in weights if name not in routers]
    matrices = (info for info in infos if len(info.shape) == 2 and info.shape[0] > 1)
    dense = {info.kind for info in matrices if info.kind.is_dense}
    if dtype == "auto":
        dtype = "bfloat16" if dense == {DENSE_KINDS["BF16"]} else "float32"
    weight_dtype: str = settings.weight_dtype
    if weight_dtype == "auto":
        weight_dtype = "bf16" if dtype == "bfloat16" else "float32"
        if settings.dtype == "auto" and dense == {DENSE_KINDS["F16"]}:
            weight_dtype = "f16"
    kv_dtype: str = settings.kv_dtype
    if kv_dtype == "auto":
        requested = (settings.dtype, settings.activations, settings.weight_dtype)
        exact = not {"float32", "f16"}.isdisjoint(requested)
        if not mostly_rounded(weights):
            exact = exact or weight_dtype in ("float32", "f16")
        rounded = "int8" if is_speech and weight_dtype in INTEGERS else "bfloat16"
        kv_dtype = rounded if executor in ("cpu", "gpu") and not exact else dtype
        if "float32" not in requested and has_8_bit_kv(checkpoint.folder, checkpoint.config):
            kv_dtype = "int8"
    return ExecutorOptions(
        dtype=dtype,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        device=settings.device,
        threads=settings.threads or max(1, available_cores() // settings.ranks_here),
        activations=settings.activations,
        disable_pass=settings.disable_pass,
        weight_cache=checkpoint if settings.weight_cache else None,
        experts=settings.experts,
        ranks=settings.tensor_parallel,
    )


def read_for_executor(
    settings: EngineSettings, folder: Path, chosen: tuple[str, ExecutorFactory]
) -> tuple[Model, str, ExecutorFactory]:
    """Return a model, and the name and factory of the executor that runs it.

    Args:
        settings: as for :func:`read_model`.
        folder: the checkpoint.
        chosen: the result of :func:`galley.ops.choice.choose_executor`. If "auto" chose an executor that
            does not have all kernels of the model, it is read for another one.

    Raises:
        ModelError, SettingsError: as for :func:`read_model`.
    """
    model = read_model(settings, folder, chosen[0])
    name, factory = executor_of(model.program, settings.executor, chosen)
    if name != chosen[0]:
        model = read_model(settings, folder, name)
    return model, name, factory


def mostly_rounded(weights: Weights) -> bool:
    """Return whether most weights of the checkpoint's matrices are quantized in it, as in a Q4_1 file."""
    sizes = {True: 0, False: 0}
    for name in weights:
        info = weights.info(name)
        if len(info.shape) >= 2:
            sizes[info.kind.is_dense] += math.prod(info.shape)
    return sizes[False] > sizes[True]
