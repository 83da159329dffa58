"""From settings to an engine that is ready: one builder for each type of model, then the hooks."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from galley.engine.build_generation import build_generation
from galley.engine.build_vectors import build_vectors
from galley.engine.embedding_engine import EmbeddingEngine
from galley.engine.engine import Engine
from galley.engine.loading import Loading, StartPhases
from galley.engine.step_meter import Pauses
from galley.errors import DamagedWeights, EngineFailed, SettingsError
from galley.formats.gguf_file import is_gguf, split_files
from galley.machine import address_space_left, available_memory
from galley.settings.engine import EngineSettings
from galley.types import OnPhase
from galley.types.model_info import OnLedger

T = TypeVar("T")

_HOOKS: Final[Mapping[str, str]] = {"quality_gate": "galley.calibration.gate:check"}
"""Setting -> ``module:function``, called with (engine, settings, folder) if the setting is not empty.

The module is imported only then, so that an engine's start does not pay for unused features.
"""


class NativeOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The ``engine_options`` of Galley's native engine: none. It is configured by settings."""


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> Engine | EmbeddingEngine:
    """Build the engine for the checkpoint in ``folder``, which may be a GGUF file, and run the hooks.

    Args:
        settings: sizes and choices; ``settings.model`` is only the name here.
        folder: the checkpoint.
        on_phase: called with (name, seconds) as each of "import", "load" and "warm-up" ends.
        pause: see :class:`galley.ops.executor.ExecutorOptions`.
        on_ledger: called with the memory that the model will take, before its weights are loaded.

    Raises:
        ModelError, SettingsError: the checkpoint or the settings cannot be used.
        EngineFailed: there is not enough memory; the message has three changes that would make it fit.
    """
    engine = load_without_hooks(settings, folder, on_phase, pause, on_ledger)
    for name, target in _HOOKS.items():
        if getattr(settings, name):
            module, _, function = target.partition(":")
            getattr(importlib.import_module(module), function)(engine, settings, folder)
    return engine


def load_without_hooks(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> Engine | EmbeddingEngine:
    """Build the engine without running the hooks; arguments and errors are those of :func:`load`."""
    settings.options_as(NativeOptions)
    clock = StartPhases(on_phase)
    pauses = None if pause is None else Pauses(pause)

    def build() -> Engine | EmbeddingEngine:
        loading = Loading.begin(settings, folder, clock, pauses, on_ledger)
        if loading.model.head is not None:
            return build_vectors(loading)
        return build_generation(loading)

    return _retrying(folder, build)


def load_engine(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> Engine:
    """Build the engine of a model that generates, as :func:`load` does.

    Raises:
        SettingsError: the model makes vectors or scores of texts.
    """
    engine = load(settings, folder, on_phase, pause, on_ledger)
    if not isinstance(engine, Engine):
        raise SettingsError(
            f"{folder} returns vectors or scores of texts; it does not generate text"
        )
    return engine


def _retrying(folder: Path, build: Callable[[], T]) -> T:
    """Return the result of ``build``, retried once if packed weights were damaged: they are packed anew.

    Raises:
        EngineFailed: memory ran out.
    """
    try:
        try:
            return build()
        except DamagedWeights:
            return build()
    except MemoryError as error:
        files = split_files(folder) if is_gguf(folder) else folder.glob("*.safetensors")
        needs = sum(path.stat().st_size for path in files) / 2**20
        left = min(available_memory(), address_space_left()) / 2**20
        raise EngineFailed(
            f"out of memory while loading {folder}: its weights are {needs:.0f} MiB on disk, "
            f"{left:.0f} MiB are available now. Raise the limit (container, ulimit -v), set "
            "weight_dtype to int8 or int4, or lower kv_cache_tokens"
        ) from error
