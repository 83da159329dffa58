"""What the engines over other libraries share: their import, a model's file, settings that do not apply."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from galley.errors import CheckpointError, SettingsError, pip_install
from galley.settings.engine import EngineSettings


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


def refuse_settings(settings: EngineSettings, unset: Mapping[str, object], reason: str) -> None:
    """Raise SettingsError for a setting of Galley's own engine, which the library would ignore.

    Args:
        settings: the model's settings.
        unset: setting -> the value that it has if it is left out.
        reason: the rest of the message, after the model's name.
    """
    for name, value in unset.items():
        given = getattr(settings, name)
        if given != value:
            raise SettingsError(f"{name} is {given!r}, but {settings.model} {reason}")
