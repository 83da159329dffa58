"""The model that a plan is for."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galley.settings.config import Settings
from galley.settings.engine import KVType

if TYPE_CHECKING:
    from galley.graph.program import Program


def read_program(settings: Settings) -> "tuple[Path, Mapping[str, Any], Program]":
    """Return the model's file of fields, these fields, and its program."""
    from galley.formats.gguf_file import is_gguf
    from galley.formats.json_file import read_json
    from galley.formats.reader import open_checkpoint
    from galley.formats.source import resolve_config
    from galley.models.registry import build_program

    config = resolve_config(settings.model, revision=settings.revision)
    fields = open_checkpoint(config).config if is_gguf(config) else read_json(config)
    return config, fields, build_program(fields)


def kv_dtype_of(settings: Settings) -> KVType:
    """Return the type of keys and values that a plan assumes."""
    return "bfloat16" if settings.kv_dtype == "auto" else settings.kv_dtype
