"""Calls of tools in the form in which a chat template expects them, which differs between templates."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_PROBE: Final = "galley_probe"

_SHORT_IDS: Final = re.compile(r"length\s*!=\s*9\b")
"""Mistral's templates refuse ids of calls that have not nine letters or digits."""

_NULL_CONTENT: Final = re.compile(r"content['\"\]]*\s+is\s+none")
"""DeepSeek's templates take a message with calls for one only if its content is null."""


def adapted(
    messages: Sequence[Mapping[str, Any]], source: str, *, as_text: bool
) -> list[dict[str, Any]]:
    """Messages whose calls are written as the template with this ``source`` expects them.

    Args:
        messages: the arguments of their calls are dictionaries.
        as_text: the template wants these as JSON's text.
    """
    short = _SHORT_IDS.search(source) is not None
    null = None if _NULL_CONTENT.search(source) else ""
    return [_adapted(dict(message), short, null, as_text) for message in messages]


def _adapted(
    message: dict[str, Any], short: bool, null: str | None, as_text: bool
) -> dict[str, Any]:
    if short and isinstance(message.get("tool_call_id"), str):
        message["tool_call_id"] = _nine(message["tool_call_id"])
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        if as_text and not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": function})
        if short and isinstance(call.get("id"), str):
            calls[-1]["id"] = _nine(call["id"])
    return {"content": null, **message, "tool_calls": calls}


def _nine(identifier: str) -> str:
    """Nine letters or digits that stand for an id; such an id stands for itself."""
    if len(identifier) == 9 and identifier.isalnum() and identifier.isascii():
        return identifier
    return hashlib.blake2b(identifier.encode("utf-8", "replace")).hexdigest()[:9]


def probe_conversation() -> list[dict[str, Any]]:
    """A conversation with a call whose arguments are a dictionary; see :func:`wrote_a_dict`."""
    call = {
        "type": "function",
        "id": "probe0000",
        "function": {"name": _PROBE, "arguments": {_PROBE: 1}},
    }
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


def wrote_a_dict(prompt: str) -> bool:
    """Whether a template wrote the probe's arguments in Python's notation, so it expects them as text."""
    return "{'" + _PROBE in prompt
