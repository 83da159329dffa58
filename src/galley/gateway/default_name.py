"""The name in the API of a model to which the settings give none."""

from pathlib import Path

from galley.formats.gguf_file import is_gguf
from galley.formats.source import BUNDLED
from galley.settings.engine_choice import is_file_of_engine


def default_name(model: str) -> str:
    """Return a folder's name, a file's name without its extension, or a hub id as it is."""
    if not model:
        return BUNDLED
    if is_gguf(Path(model)) or is_file_of_engine(Path(model)):
        return Path(model).stem
    return Path(model).resolve().name if Path(model).is_dir() else model
