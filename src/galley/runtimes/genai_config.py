"""The configuration in a folder of ONNX Runtime GenAI, checked before the library reads it."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import parse_json, read_file
from galley.settings.engine_choice import ONNX_GENAI_FILE

_LIBRARY: Final = re.compile(r"librar|paths?$", re.IGNORECASE)
"""Names of fields with libraries of operators and of execution providers, such as custom_ops_library."""


def read_genai_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the model in a folder.

    Raises:
        UnsupportedModel: there is none.
        CheckpointError: it is damaged, names a library, which would run in the engine's process, or names a
            file outside of the folder.
    """
    path = folder / ONNX_GENAI_FILE
    if not path.is_file():
        raise UnsupportedModel(
            f"{folder} has no {ONNX_GENAI_FILE}: convert the checkpoint with python -m "
            "onnxruntime_genai.models.builder"
        )
    # As the header of a file, without repeated names: the library may use another of the values.
    config = parse_json(read_file(path), path, "the configuration")
    for place, key, value in _fields(config):
        if _LIBRARY.search(key) and value:
            raise CheckpointError(
                "names code to be loaded, which a checkpoint may not do: remove it from the file",
                file=str(path),
                field=place,
            )
        if key.endswith("filename") and isinstance(value, str) and not _is_inside(value):
            raise CheckpointError(
                f"is {value[:120]!r}, outside of the model's folder", file=str(path), field=place
            )
    return config


def _fields(config: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the place, name and value of each field, also of objects in objects and in lists."""
    left: list[tuple[str, Any]] = [("", config)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            for key, part in value.items():
                yield f"{place}{key}", key, part
                left.append((f"{place}{key}.", part))
        elif isinstance(value, list):
            left += [(place, part) for part in value]


def _is_inside(name: str) -> bool:
    return not PurePath(name).is_absolute() and ".." not in PurePath(name).parts
