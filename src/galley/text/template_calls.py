"""Tool calls in the form that a chat template expects, which differs between templates."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from galley.errors import RequestError

_PROBE: Final = "galley_probe"

_SHORT_IDS: Final = re.compile(r"length\s*!=\s*9\b")
"""A call id of nine letters or digits, the only form that Mistral's templates accept."""

_THINKING: Final = "message.thinking"
"""Key of gpt-oss's template for what other templates call ``reasoning_content``."""


class CallForm(NamedTuple):
    """How a template expects calls.

    Attributes:
        content: content of a message with calls and no text: some templates expect a text, others
            None.
        as_text: arguments are JSON text, not a dictionary.
        any_text: arguments that are not a JSON object can be written as they are. Otherwise they
            are passed as the only argument, named ``arguments``, because such templates write each
            argument separately.
    """

    content: str | None = ""
    as_text: bool = False
    any_text: bool = True


class RawJson(str):
    """Text of arguments that is not a JSON object; ``tojson`` writes it as it is."""

    __slots__ = ()


_FORMS: Final = tuple(
    CallForm(content, as_text) for content in ("", None) for as_text in (False, True)
)


def found_form(render: Callable[[list[dict[str, Any]]], str]) -> CallForm:
    """Return the first form in which a template writes a call.

    Args:
        render: renders messages with the template. Raises RequestError if it refuses them.
    """
    for form in _FORMS:
        prompt = _probed(render, form, {_PROBE + "_key": 1})
        # A dictionary in Python's notation means that the template expected a string.
        if prompt.count(_PROBE) >= 2 and "{'" + _PROBE not in prompt:
            cut = '{"' + _PROBE + "_cut"
            rendered = _probed(render, form, cut)
            return form._replace(any_text=cut in rendered or json.dumps(cut) in rendered)
    return CallForm()


def _probed(
    render: Callable[[list[dict[str, Any]]], str], form: CallForm, arguments: dict[str, Any] | str
) -> str:
    """Render a call; return an empty text if the template refuses it."""
    function = {"name": _PROBE, "arguments": arguments}
    call = {"type": "function", "id": "probe0000", "function": function}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    try:
        return render([{"role": "user", "content": "x"}, _adapted(said, form, short=False)])
    except RequestError:
        return ""


def adapted(
    messages: Sequence[Mapping[str, Any]], source: str, form: CallForm
) -> list[dict[str, Any]]:
    """Return messages whose calls are in the form that the template with this ``source`` expects.

    On input, the arguments of calls are dictionaries, or text that is not a JSON object.
    """
    short = _SHORT_IDS.search(source) is not None
    changed = [_adapted(dict(message), form, short=short) for message in messages]
    if _THINKING in source:
        for message in changed:
            # With calls, the template accepts thinking or text, not both.
            if "reasoning_content" in message and not message.get("content"):
                message["thinking"] = message["reasoning_content"]
    return changed


def _adapted(message: dict[str, Any], form: CallForm, *, short: bool) -> dict[str, Any]:
    if short and isinstance(message.get("tool_call_id"), str):
        message["tool_call_id"] = _nine(message["tool_call_id"])
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        arguments = function["arguments"]
        if isinstance(arguments, str):
            raw = RawJson(arguments)
            function["arguments"] = raw if form.any_text else {"arguments": arguments}
        elif form.as_text:
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": function})
        if short and isinstance(call.get("id"), str):
            calls[-1]["id"] = _nine(call["id"])
    return {**message, "content": message.get("content") or form.content, "tool_calls": calls}


def _nine(identifier: str) -> str:
    """Return nine letters or digits that stand for an id; an id of that form is kept."""
    if len(identifier) == 9 and identifier.isalnum() and identifier.isascii():
        return identifier
    return hashlib.blake2b(identifier.encode("utf-8", "replace")).hexdigest()[:9]
