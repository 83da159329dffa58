"""Find the chat templates that a checkpoint supplies, in the files where checkpoints have them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError
from galley.formats.json_file import is_there, read_file, read_json
from galley.formats.source import TEMPLATES_FOLDER
from galley.text.declared_tokens import CONFIG_FILE

TEMPLATE_FILE: Final = "chat_template.jinja"
TOOL_USE: Final = "tool_use"
"""Name of the template for conversations with tools, if a checkpoint has several templates."""


def read_templates(folder: Path) -> tuple[dict[str, str], Path]:
    """Read a folder's templates "default" and :data:`TOOL_USE`; return their sources and the file.

    They are in separate files, which take precedence, or in ``tokenizer_config.json``.

    Raises:
        CheckpointError: they cannot be read.
    """
    default, tools = folder / TEMPLATE_FILE, folder / TEMPLATES_FOLDER / f"{TOOL_USE}.jinja"
    named = {TOOL_USE: _template_in(tools)} if is_there(tools) else {}
    if is_there(default):
        return {**named, "default": _template_in(default)}, default
    path = folder / CONFIG_FILE
    config = read_json(path) if is_there(path) else {}
    return {**_named_templates(config, str(path)), **named}, path


def _template_in(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"cannot be read: {error}", file=str(path)) from error


def _named_templates(config: Mapping[str, Any], file: str) -> dict[str, str]:
    """Return the templates of ``tokenizer_config.json``, by name.

    The file has one template as a text, a list or an object of named ones, or none.
    """
    templates = config.get("chat_template")
    if templates is None:
        return {}
    named: dict[Any, Any] = {"default": templates}
    if isinstance(templates, list | dict):
        named = dict(templates) if isinstance(templates, dict) else _listed(templates)
        if "default" not in named:
            raise CheckpointError(
                f"no template is named default; templates: {', '.join(map(str, named))}",
                file=file,
                field="chat_template",
            )
    found = {name: named[name] for name in ("default", TOOL_USE) if named.get(name) is not None}
    if not all(isinstance(template, str) for template in found.values()):
        raise CheckpointError("is not a string", file=file, field="chat_template")
    return found


def _listed(templates: list[Any]) -> dict[Any, Any]:
    return {t.get("name"): t.get("template") for t in templates if isinstance(t, dict)}
