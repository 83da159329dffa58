"""Shared by engines over other libraries: import, a model's file, settings that do not apply, time."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from galley.engine.step_meter import StepMeter
from galley.errors import CheckpointError, SettingsError, pip_install
from galley.settings.engine import EngineSettings

_OF_NATIVE: Final[Mapping[str, object]] = {
    "dtype": "auto",
    "weight_dtype": "auto",
    "activations": "auto",
    "kv_dtype": "auto",
    "executor": "auto",
    "device": "cpu",
    "experts": "memory",
    "quality_gate": "",
    "draft_model": None,
    "tensor_parallel": 1,
    "speculation": "auto",
    "max_adapters": None,
    "batching": "continuous",
    "disable_pass": (),
    "prefix_cache_dir": "",
}
"""Settings that only Galley's own engine has, with the values that they have if left out."""

OF_TEXT: Final[Mapping[str, object]] = {"system_prompt": "", "sampling_defaults": ()}
"""Settings of models of text alone, with the values that they have if left out."""


def import_library(module: str, engine: str, extra: str) -> Any:
    """Import a library. Raises SettingsError if it cannot be imported.

    Args:
        module: name of the module.
        engine: name of the engine that needs it.
        extra: the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingsError(
            f"engine {engine} needs {module}, which cannot be imported ({error}): {pip_install(extra)}"
        ) from error


def model_file(path: Path, suffixes: Sequence[str]) -> Path:
    """Return a file, or the one in a folder: ``model`` with one of the suffixes, or the only such file.

    Raises:
        CheckpointError: there is none, or several.
    """
    if path.is_file():
        return path
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes)
    named = [file for file in files if file.stem == "model"]
    for candidates in (named, files):
        if len(candidates) == 1:
            return candidates[0]
    found = ", ".join(file.name for file in files) or "none"
    kinds = " or ".join(f"model{suffix}" for suffix in suffixes)
    raise CheckpointError(f"holds no {kinds}, and not one other such file: {found}", file=str(path))


def refuse_settings(
    settings: EngineSettings, reason: str, further: Mapping[str, object] = {}
) -> None:
    """Raise SettingsError for a setting of Galley's own engine, which the library would ignore.

    Args:
        settings: the model's settings.
        reason: the rest of the message, after the model's name.
        further: other settings that do not apply -> the values that they have if left out.
    """
    for name, unset in {**_OF_NATIVE, **further}.items():
        given = getattr(settings, name)
        # Off is what the libraries do.
        if given != unset and (name, given) != ("speculation", "off"):
            raise SettingsError(f"{name} is {given!r}, but {settings.model} {reason}")


def step_meter(pause: Callable[[], None] | None) -> StepMeter:
    """Return the meter of an engine whose waits for the cores are between steps.

    A library does not yield the cores within a step.
    """
    return StepMeter(None if pause is None else lambda: 0.0)
