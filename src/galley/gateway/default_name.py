"""The name in the API of a model to which the settings give none."""

from pathlib import Path

from galley.formats.gguf_file import is_gguf
from galley.formats.source import BUNDLED, existing_path
from galley.settings.engine_choice import is_file_of_engine


def default_name(model: str) -> str:
    """Return a folder's name, a file's name without its extension, or a hub id as it is."""
    if not model:
        return BUNDLED
    path = existing_path(model)
    if is_file_of_engine(Path(model)) or (path is not None and is_gguf(path)):
        return Path(model).stem
    return path.resolve().name if path is not None and path.is_dir() else model
