"""Loading, which all engines of language models over other libraries share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from galley.engine.loading import StartPhases
from galley.engine.memory import RESERVE_BYTES
from galley.errors import CheckpointError, EngineError, SettingsError, UnsupportedModel
from galley.formats.reader import CheckpointReader, open_checkpoint
from galley.machine import available_cores, available_memory
from galley.models.fields import Fields
from galley.runtimes.library import refuse_settings, step_meter
from galley.runtimes.text_engine import TextEngine
from galley.runtimes.text_memory import TextMemory
from galley.runtimes.text_runtime import TextRuntime
from galley.settings.engine import EngineSettings
from galley.types import Generate, OnPhase, SamplingDefaults
from galley.types.model_info import CACHE_SALT, Ledger, ModelInfo, OnLedger, TextInfo

_BYTES_PER_VALUE: Final = 2
"""Bytes of a key or value, for the size of the KV cache: libraries store at most 16 bits by default."""


class PrefixOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ``engine_options`` of every library that can reuse prefixes.

    Attributes:
        prefix_caching: reuse the KV cache of equal prefixes; tenants share it, so that response times
            reveal whether another tenant has sent a prefix.
    """

    prefix_caching: bool = False


Options = TypeVar("Options", bound=PrefixOptions)


@dataclass(frozen=True, kw_only=True)
class TextSizes:
    """Sizes and limits of a model in another library.

    Attributes:
        context: tokens of the longest text, its prompt included.
        running: the most texts at a time.
        step_tokens: the most tokens that a step computes.
        kv_tokens: tokens that the KV cache holds.
        kv_requested: the same, if the settings say it; None: it follows from this machine's memory.
        threads: compute threads.
        vocabulary: number of token ids.
        kv_bytes_per_token: bytes of a token's keys and values, 16 bits each.
    """

    context: int
    running: int
    step_tokens: int
    kv_tokens: int
    kv_requested: int | None
    threads: int
    vocabulary: int
    kv_bytes_per_token: int


@dataclass(frozen=True, kw_only=True)
class TextLoader(Generic[Options]):
    """The loader of an engine of language models; see :class:`galley.service.protocol.EngineLoader`.

    Attributes:
        executor: name of the library.
        options: the engine's own options.
        unsupported: the parameters that requests may not set; see
            :class:`~galley.types.model_info.TextInfo`. With ``prefix_caching``, neither may they set a
            cache salt: the library finds a prefix whoever sends it.
        load: loads the model at a path, with its options and sizes.
        weight_bytes: returns the least bytes of memory that the weights at a path take; None: another
            device has them.
    """

    executor: str
    options: type[Options]
    unsupported: tuple[str, ...]
    load: Callable[[Path, Options, TextSizes], TextRuntime[Generate]]
    weight_bytes: Callable[[Path, Options], int | None]

    def __call__(
        self,
        settings: EngineSettings,
        folder: Path,
        on_phase: OnPhase | None = None,
        pause: Callable[[], None] | None = None,
        on_ledger: OnLedger | None = None,
    ) -> TextEngine[Generate]:
        """Load a model, and return its engine.

        The memory is measured, so ``on_ledger`` is called when the model has been loaded.

        Raises:
            ModelError, SettingsError: the model or the settings cannot be used.
            NotEnoughMemory: the model does not fit in memory.
        """
        options = settings.options_as(self.options)
        check_settings(settings, self.executor)
        clock = StartPhases(on_phase)
        checkpoint = open_checkpoint(folder)
        weights = self.weight_bytes(folder, options)
        sizes = text_sizes(settings, checkpoint, weights or 0)
        unsupported = self.unsupported
        if options.prefix_caching:
            unsupported = (*unsupported, CACHE_SALT)
        check_defaults(settings.with_own(checkpoint.defaults), unsupported, self.executor)
        memory = text_memory(settings, checkpoint, sizes, self.executor, weights)
        runtime = self.load(folder, options, sizes)
        ledger = announced(memory, on_ledger)
        clock.end("load")
        return TextEngine(
            runtime,
            text_info(settings, checkpoint, sizes, self.executor, unsupported, clock, ledger),
            max_running=sizes.running,
            priority_steps=settings.priority_steps,
            meter=step_meter(pause),
        )


def text_info(
    settings: EngineSettings,
    checkpoint: CheckpointReader,
    sizes: TextSizes,
    executor: str,
    unsupported: tuple[str, ...],
    clock: StartPhases,
    ledger: Ledger | None = None,
    *,
    scores: bool = False,
) -> ModelInfo:
    """Return the description of a model that another library runs.

    Args:
        settings: the model's settings.
        checkpoint: its configuration.
        sizes: its sizes and limits.
        executor: name of the library.
        unsupported: parameters that requests may not set.
        clock: the phases of the start, the last of which is over.
        ledger: its memory; None: that of another device.
        scores: whether the log-probabilities of a given text's tokens are computed.
    """
    return ModelInfo(
        name=settings.model or checkpoint.folder.name,
        path=str(checkpoint.folder),
        family=str(checkpoint.config["model_type"]),
        tasks=("score", "generate") if scores else ("generate",),
        executor=executor,
        text=TextInfo(
            vocab_size=sizes.vocabulary,
            max_model_len=sizes.context,
            kv_cache_tokens=sizes.kv_tokens,
            eos_token_ids=checkpoint.eos_token_ids,
            defaults=settings.with_own(checkpoint.defaults),
            grammars="grammar" not in unsupported,
            unsupported=unsupported,
        ),
        phases=clock.ready(),
        ledger=ledger,
    )


def text_memory(
    settings: EngineSettings,
    checkpoint: CheckpointReader,
    sizes: TextSizes,
    executor: str,
    weights: int | None,
) -> TextMemory | None:
    """Return the memory of a model that is about to be loaded; None: another device has its weights.

    Raises:
        NotEnoughMemory: it does not fit.
    """
    if weights is None:
        return None
    return TextMemory(
        name=settings.model or checkpoint.folder.name,
        family=str(checkpoint.config["model_type"]),
        executor=executor,
        threads=sizes.threads,
        context=sizes.context,
        step_tokens=sizes.step_tokens,
        weights=weights,
        kv_tokens=sizes.kv_tokens,
        kv_per_token=sizes.kv_bytes_per_token,
    )


def check_settings(settings: EngineSettings, executor: str) -> None:
    """Raise SettingsError for a setting that only Galley's own engine has."""
    refuse_settings(
        settings,
        f"is run by {executor}, which has no such setting: leave it out; engine_options has its own",
    )


def announced(memory: TextMemory | None, on_ledger: OnLedger | None) -> Ledger | None:
    """Return the ledger of a model that has been loaded, after reporting it; None: another device has it.

    Raises:
        NotEnoughMemory: the model takes more than there is.
    """
    if memory is None:
        return None
    ledger = memory.loaded()
    if on_ledger is not None:
        on_ledger(ledger)
    return ledger


def check_defaults(defaults: SamplingDefaults, unsupported: tuple[str, ...], library: str) -> None:
    """Raise SettingsError for a default of sampling that the library would not honor."""
    for name, neutral in msgspec.structs.asdict(SamplingDefaults()).items():
        given = getattr(defaults, name)
        if name in unsupported and given != neutral:
            raise SettingsError(
                f"the default of {name} is {given}, but {library} has no such parameter: set "
                f"sampling_defaults to {name}={neutral:g}"
            )


def text_sizes(
    settings: EngineSettings, checkpoint: CheckpointReader, weights: int = 0
) -> TextSizes:
    """Return a model's sizes, by its configuration and the settings.

    The KV cache is as large as requested, or takes its share of the memory that the weights leave, but no
    more than all running texts can fill.

    Raises:
        CheckpointError: a field of the configuration is missing or invalid.
        UnsupportedModel: it is not a language model.
        SettingsError: ``max_model_len`` exceeds the model's context.
    """
    config = Fields(checkpoint.config, file=str(checkpoint.folder))
    if "max_position_embeddings" not in checkpoint.config:
        kind = checkpoint.config.get("model_type")
        raise UnsupportedModel(
            f"{checkpoint.folder} is a {kind} model, and this engine runs language models: its "
            "configuration has no max_position_embeddings"
        )
    trained = config.count("max_position_embeddings")
    context = settings.max_model_len or trained
    if context > trained:
        raise SettingsError(
            f"max_model_len is {context}, but {checkpoint.folder} was trained for {trained}"
        )
    running = settings.running_limit
    tokens, kv_bytes = settings.kv_cache_tokens, _kv_bytes_per_token(config)
    if tokens is None:
        left = max(0, available_memory() - weights - RESERVE_BYTES)
        tokens = min(running * context, int(settings.kv_memory_fraction * left) // kv_bytes)
    return TextSizes(
        context=context,
        running=running,
        step_tokens=settings.max_batch_tokens,
        kv_tokens=tokens,
        kv_requested=settings.kv_cache_tokens,
        threads=settings.threads or available_cores(),
        vocabulary=config.count("vocab_size"),
        kv_bytes_per_token=kv_bytes,
    )


def _kv_bytes_per_token(config: Fields) -> int:
    heads = config.count("num_attention_heads")
    width = config.count("head_dim", config.count("hidden_size") // heads)
    kept = config.count("num_key_value_heads", heads) * width
    return 2 * config.count("num_hidden_layers") * kept * _BYTES_PER_VALUE


def check_folder(path: Path, library: str) -> None:
    """Raise UnsupportedModel unless a path is a folder, where a library reads nothing else."""
    if not path.is_dir():
        raise UnsupportedModel(
            f"{path} is not a folder of safetensors, and {library} reads no others"
        )


@contextmanager
def loading(library: str, path: Path) -> Iterator[None]:
    """Raise CheckpointError for what a library raises while it loads the folder ``path``."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(
            f"{library} cannot load it: {first_line(error)}", file=str(path)
        ) from error


def refuse_resumed_penalties(payload: Generate, library: str) -> None:
    """Raise EngineError for a text that began in another process and whose penalties count its output.

    The library takes that output for a part of the prompt.
    """
    sampling = payload.sampling
    if payload.output and (sampling.presence_penalty or sampling.frequency_penalty):
        raise EngineError(
            f"the engine died, and {library} cannot continue a text with presence_penalty or "
            "frequency_penalty: repeat the request"
        )


def first_line(error: Exception) -> str:
    """Return what a library's exception says, without its trace of source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Check ", "Exception from "))]
    return (said or lines or [repr(error)])[-1]
