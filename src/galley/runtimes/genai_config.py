"""The configuration in a folder of ONNX Runtime GenAI, checked before the library reads it."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import parse_json, read_file
from galley.models.fields import Fields
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


def has_own_batches(config: dict[str, Any], folder: Path) -> bool:
    """Return whether the folder says how to batch, or lists devices other than the CPU.

    Raises:
        CheckpointError: a field is not an object.
    """
    options = _object(config, ("model", "decoder", "session_options"), folder)
    return "engine" in config or bool(options.get("provider_options"))


def most_texts(config: dict[str, Any], folder: Path, context: int, memory: int) -> int:
    """Return how many texts of ``context`` tokens fit into ``memory`` bytes beyond the model, at least 1.

    The library makes room for a text's keys and values, of at most 32 bits, when the text begins.

    Raises:
        CheckpointError: a field is missing or invalid.
    """
    decoder = _object(config, ("model", "decoder"), folder)
    fields = Fields(decoder, prefix="model.decoder.", file=str(folder / ONNX_GENAI_FILE))
    sizes = ("num_hidden_layers", "num_key_value_heads", "head_size")
    token_bytes = 2 * 4 * math.prod(fields.count(size) for size in sizes)
    return max(1, memory // (context * token_bytes))


def _object(config: dict[str, Any], names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return an object in an object, and so on; an empty one where it is missing."""
    found = config
    for number, name in enumerate(names, 1):
        value = found.get(name, {})
        if not isinstance(value, dict):
            place = ".".join(names[:number])
            raise CheckpointError(
                "is not an object", file=str(folder / ONNX_GENAI_FILE), field=place
            )
        found = value
    return found


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
