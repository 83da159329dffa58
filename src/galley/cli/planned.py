"""Shared by the commands that plan: options, the model, and the goal."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import ABOVE_ZERO
from galley.settings.config import Settings
from galley.settings.engine import KVType

if TYPE_CHECKING:
    from galley.graph.program import Program

_GOALS: Final = {"ttft": "seconds to the first token", "tpot": "seconds between tokens"}


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--gpus``, ``--hardware`` and the goal to a command."""
    options = (
        click.option(
            "--gpus",
            type=click.IntRange(1, 64),
            default=1,
            show_default=True,
            help="GPUs of a machine that share each matrix (tensor parallelism)",
        ),
        click.option(
            "--hardware",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="another table of machines",
        ),
        *(
            click.option(f"--{name}", type=ABOVE_ZERO, help=f"goal: {meaning}")
            for name, meaning in _GOALS.items()
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def limits(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits that the goal has."""
    return {name: options[name] for name in _GOALS if options[name] is not None}


def is_of_whole_texts(config: Path, fields: Mapping[str, Any]) -> bool:
    """Return whether a model returns vectors or scores of whole texts; see :func:`read_program`."""
    from galley.formats.gguf_file import is_gguf
    from galley.models.vector_models import is_vector_model

    return not is_gguf(config) and is_vector_model(fields, config.parent)


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
