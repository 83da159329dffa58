"""The engine of a model for which none is named, by its file or folder."""

from pathlib import Path
from typing import Final

NATIVE_ENGINE: Final = "native"
"""Name of Galley's built-in engine; :mod:`galley.service.protocol` finds others by name."""

ONNX_ENGINE: Final = "onnx"

ENGINE_OF_SUFFIX: Final = {".onnx": ONNX_ENGINE}
"""Suffix of a file -> the engine that serves such files."""


def engine_of(model: str) -> str:
    """Return the name of the engine that serves ``model``, a name of the hub, a file or a folder.

    A folder with safetensors is a checkpoint of Galley's own engine, whatever else it holds.
    """
    path = Path(model)
    if (named := ENGINE_OF_SUFFIX.get(path.suffix.lower())) is not None:
        return named
    try:
        suffixes = {file.suffix.lower() for file in path.expanduser().iterdir()} if model else set()
    except (OSError, ValueError, RuntimeError):  # no folder, no access, or no such user's home
        return NATIVE_ENGINE
    if ".safetensors" in suffixes or ".gguf" in suffixes:
        return NATIVE_ENGINE
    found = (engine for suffix, engine in ENGINE_OF_SUFFIX.items() if suffix in suffixes)
    return next(found, NATIVE_ENGINE)


def is_file_of_engine(path: Path) -> bool:
    """Return whether ``path`` is a model in one file, of an engine other than Galley's own."""
    return path.suffix.lower() in ENGINE_OF_SUFFIX
