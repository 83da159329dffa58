"""System messages where a chat template accepts them, which differs between templates."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from galley.errors import RequestError

Messages = list[dict[str, Any]]

_FIRST: Final = "galley_first"
_USER: Final = "galley_asked"
_LATE: Final = "galley_late"
_PROBE: Final[Messages] = [
    {"role": "system", "content": _FIRST},
    {"role": "user", "content": _USER},
    {"role": "assistant", "content": "x"},
    {"role": "system", "content": _LATE},
    {"role": "user", "content": "x"},
]
_TAKES_MORE: Final = ("user", "tool")
"""Roles whose messages a late system message may join: the model reads both before its answer."""


def takes_late(render: Callable[[Messages], str]) -> bool:
    """Return whether a template writes a system message in its place, after other messages.

    Some templates refuse one that is not the first, some leave it out, and some move it to the
    front, where it would invalidate all that the prefix cache holds.

    Args:
        render: renders messages with the template. Raises RequestError if it refuses them.
    """
    try:
        prompt = render(_PROBE)
    except RequestError:
        return False
    places = [prompt.find(text) for text in (_FIRST, _USER, _LATE)]
    return -1 not in places and places == sorted(places)


def without_late(messages: Sequence[dict[str, Any]]) -> Messages:
    """Return the messages with at most one system message, the first.

    System messages at the beginning are merged into one. A later one joins the user's or tool's
    message before it, or else the user's message after it; if there is neither, it becomes a
    message of the user.
    """
    first = next((n for n, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    placed: Messages = []
    if first:
        placed.append({**messages[0], "content": _joined(messages[:first])})
    waiting: Messages = []
    for message in messages[first:]:
        if message.get("role") == "system":
            waiting.append(message)
            continue
        placed.append(_settled(placed, waiting, message))
        waiting = []
    if waiting:
        if placed and placed[-1].get("role") in _TAKES_MORE:
            placed[-1] = {**placed[-1], "content": _joined([placed[-1], *waiting])}
        else:
            placed.append({"role": "user", "content": _joined(waiting)})
    return placed


def _settled(placed: Messages, waiting: Messages, message: dict[str, Any]) -> dict[str, Any]:
    """Return the next message, with waiting system messages merged into it or into ``placed``."""
    if not waiting:
        return message
    if placed and placed[-1].get("role") in _TAKES_MORE:
        placed[-1] = {**placed[-1], "content": _joined([placed[-1], *waiting])}
    elif message.get("role") == "user":
        return {**message, "content": _joined([*waiting, message])}
    else:
        placed.append({"role": "user", "content": _joined(waiting)})
    return message


def _joined(messages: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(filter(None, map(_text, messages)))


def _text(message: dict[str, Any]) -> str:
    return message.get("content") or ""
