"""Import of the libraries that are no dependencies, and the one file of a model's folder."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from galley.errors import CheckpointError, SettingsError, pip_install


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
