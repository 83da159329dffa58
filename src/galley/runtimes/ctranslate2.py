"""CTranslate2: Whisper and language models in the folders that its converters write.

It computes a batch from beginning to end, and no request joins it meanwhile; see
:mod:`galley.runtimes.batched`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from galley.engine.loading import StartPhases
from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.formats.ctranslate2 import WHISPER_SPEC
from galley.formats.ctranslate2_file import MODEL_FILE, is_ctranslate2, read_ctranslate2
from galley.machine import available_cores, available_memory
from galley.runtimes.batched import BatchedRuntime
from galley.runtimes.ctranslate2_text import DECODER_SPEC, CTranslate2Texts, text_info
from galley.runtimes.ctranslate2_whisper import CTranslate2Whisper, whisper_info
from galley.runtimes.library import import_library, refuse_settings
from galley.runtimes.text_build import announced, first_line
from galley.runtimes.text_engine import TextEngine
from galley.runtimes.text_memory import TextMemory, bytes_of
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import CTRANSLATE2_ENGINE
from galley.types import Generate, OnPhase, Transcribe
from galley.types.model_info import ModelInfo, OnLedger

_NOT_ITS_OWN: Final = {"kv_cache_tokens": None, "max_batch_tokens": 512}
_NOT_ON_GPUS: Final = {**_NOT_ITS_OWN, "kv_memory_fraction": 0.5}
"""Settings of KV caches and of steps that CTranslate2 does not have -> the values if left out."""


class CTranslate2Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ``engine_options`` of CTranslate2.

    Attributes:
        device: where the model is.
        device_index: number of the GPU.
        compute_type: type in which weights are kept and multiplied, such as int8; default: the file's.
        workers: batches that are computed at a time, with ``threads`` threads each.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    device_index: Annotated[int, Meta(ge=0, le=1024)] = 0
    compute_type: str = "default"
    workers: Annotated[int, Meta(ge=1, le=64)] = 1


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> TextEngine[Generate] | TextEngine[Transcribe]:
    """Load the model in a folder; see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the model or the settings cannot be used.
        NotEnoughMemory: the model does not fit in memory.
    """
    options = settings.options_as(CTranslate2Options)
    refuse_settings(
        settings,
        "is run by CTranslate2, which has no such setting: leave it out; engine_options has its own",
        _NOT_ITS_OWN if options.device == "cpu" else _NOT_ON_GPUS,
    )
    clock = StartPhases(on_phase)
    library = import_library("ctranslate2", CTRANSLATE2_ENGINE, "ctranslate2")
    spec = _spec(folder)
    if spec == WHISPER_SPEC:
        info, kind = whisper_info(settings, folder), library.models.Whisper
    else:
        (info, vocabulary), kind = text_info(settings, folder), library.Generator
    memory = _memory(settings, folder, options, info)
    model = _open(kind, folder, options, settings)
    info = msgspec.structs.replace(info, ledger=announced(memory, on_ledger))
    clock.end("load")
    limits = _limits(settings, options)
    if spec == WHISPER_SPEC:
        return _engine(CTranslate2Whisper(library, model, info, **limits), info, settings, clock)
    return _engine(CTranslate2Texts(model, folder, vocabulary, **limits), info, settings, clock)


def _memory(
    settings: EngineSettings, folder: Path, options: CTranslate2Options, info: ModelInfo
) -> TextMemory | None:
    """Return the memory of the model that is about to be loaded; None: a GPU has it.

    Raises:
        NotEnoughMemory: it does not fit.
    """
    if options.device != "cpu":
        return None
    converted = options.compute_type != "default"
    return TextMemory(
        name=info.name,
        family=info.family,
        executor=info.executor,
        threads=(settings.threads or available_cores()) * options.workers,
        context=info.require_text().max_model_len,
        step_tokens=0,
        # Of float32, a quarter is left as int8.
        weights=bytes_of([folder / MODEL_FILE]) // (4 if converted else 1),
    )


def _limits(settings: EngineSettings, options: CTranslate2Options) -> dict[str, Any]:
    """Return the limits of batches; of a GPU's memory, the library reports nothing."""
    kv_bytes = None
    if options.device == "cpu":
        kv_bytes = int(settings.kv_memory_fraction * available_memory()) // options.workers
    return {"workers": options.workers, "most": settings.running_limit, "kv_bytes": kv_bytes}


def _spec(folder: Path) -> str:
    """Return the type of the model in a folder. Raises UnsupportedModel for one that cannot be served."""
    if not is_ctranslate2(folder):
        raise UnsupportedModel(
            f"{folder} has no {MODEL_FILE} of CTranslate2: convert the checkpoint with "
            "ct2-transformers-converter --copy_files tokenizer.json tokenizer_config.json"
        )
    spec = read_ctranslate2(folder / MODEL_FILE).spec
    if spec not in (WHISPER_SPEC, DECODER_SPEC):
        raise UnsupportedModel(
            f"{folder}: is a CTranslate2 model of type {spec}; only {WHISPER_SPEC} and {DECODER_SPEC} are "
            "supported"
        )
    return spec


def _open(
    kind: Callable[..., Any], folder: Path, options: CTranslate2Options, settings: EngineSettings
) -> Any:
    """Let the library load a model.

    Raises:
        SettingsError: there is no such device or type.
        CheckpointError: the files are damaged.
    """
    try:
        return kind(
            str(folder),
            device=options.device,
            device_index=options.device_index,
            compute_type=options.compute_type,
            inter_threads=options.workers,
            intra_threads=settings.threads or available_cores(),
        )
    except ValueError as error:
        raise SettingsError(f"engine_options: CTranslate2: {first_line(error)}") from error
    except RuntimeError as error:
        if options.device != "cpu":
            raise SettingsError(
                f"engine_options: device is {options.device}: {first_line(error)}"
            ) from error
        raise CheckpointError(
            f"CTranslate2 cannot load it: {first_line(error)}", file=str(folder)
        ) from error


def _engine(
    runtime: BatchedRuntime[Any],
    info: ModelInfo,
    settings: EngineSettings,
    clock: StartPhases,
) -> TextEngine[Any]:
    # Batches are computed between the steps, too: with a meter of its own, all the time with work counts.
    return TextEngine(
        runtime,
        msgspec.structs.replace(info, phases=clock.ready()),
        max_running=settings.running_limit,
        priority_steps=settings.priority_steps,
    )
