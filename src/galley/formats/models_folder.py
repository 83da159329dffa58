"""A folder of models, each of which is served by its name."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from galley.errors import CheckpointError, SettingsError
from galley.formats.gguf_file import ggufs_in, is_accessory, is_gguf, split_files
from galley.formats.json_file import check_link
from galley.formats.source import CONFIG_FILE

_READ: Final = (".json", ".jinja", ".safetensors", ".gguf")
_NOT_ALLOWED: Final = re.compile(r"[^\w.-]", re.ASCII)


def models_in(folder: str) -> Mapping[str, Path]:
    """Return the checkpoints directly in a folder: GGUF files, and folders with these or ``config.json``.

    Returns:
        Name in the API -> path, sorted by name. A name is that of the folder, or of the GGUF file without
        its suffix, with invalid characters replaced by ``-``.

    Raises:
        SettingsError: it is not a folder, cannot be read, or two models would have the same name.
    """
    path = Path(folder).expanduser()
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise SettingsError(f"models_dir: {folder} cannot be read: {error.strerror}") from error
    models: dict[str, Path] = {}
    for entry in entries:
        if not _is_model(entry):
            continue
        _check_links(entry)
        name = _NOT_ALLOWED.sub("-", entry.name if entry.is_dir() else entry.stem).lstrip("-_.")
        if name in models:
            raise SettingsError(f"models_dir: {models[name]} and {entry} both have the name {name}")
        # A link directly in the folder was created by the operator, so it is trusted.
        models[name] = entry.resolve() if entry.is_symlink() else entry
    return models


def _check_links(entry: Path) -> None:
    """Raise SettingsError if a model has a file that is a link to elsewhere, which would not be read."""
    try:
        for path in entry.iterdir() if entry.is_dir() else ():
            if path.suffix.lower() in _READ:
                check_link(path)
    except (OSError, RuntimeError, CheckpointError) as error:
        raise SettingsError(f"models_dir: {error}") from error


def _is_model(entry: Path) -> bool:
    if entry.name.startswith("."):
        return False
    if entry.is_dir():
        return (entry / CONFIG_FILE).is_file() or bool(ggufs_in(entry))
    return is_gguf(entry) and not is_accessory(entry.name) and split_files(entry)[0] == entry
