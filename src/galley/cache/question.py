"""The question of a chat, and what a chat must have in common with another to get its answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from galley.cache.keys import digest

LONGEST: Final = 1000
"""Characters of a message beyond which it is not compared: vectors of long texts blur what differs."""


_encoder: Final = msgspec.json.Encoder(order="deterministic")
"""JSON, as the request: its whole numbers have any size (MessagePack's have 64 bits)."""


class Question(NamedTuple):
    """A chat's last message, and a digest of everything before and around it."""

    text: str
    context: bytes


class Placed(NamedTuple):
    """A question with its vector.

    Attributes:
        scope: digest of all that shapes the answer except the text, the embedding model included.
        text: the question.
        vector: from :func:`galley.cache.nearest.packed`.
    """

    scope: bytes
    text: str
    vector: bytes


def question_of(
    messages: Sequence[Mapping[str, Any]], around: object, *, most_turns: int
) -> Question | None:
    """Return the question of a chat; None if its answer must not be that of another question.

    Args:
        messages: as in :class:`galley.tools.conversation.Conversation`.
        around: plain values of all else that shapes the answer: tools, variables and parameters.
        most_turns: the most messages of the user.
    """
    if not messages:
        return None
    *before, last = messages
    text = last.get("content")
    if last.get("role") != "user" or not isinstance(text, str):
        return None
    if not text.strip() or len(text) > LONGEST:
        return None
    if sum(message.get("role") == "user" for message in messages) > most_turns:
        return None
    if any(not _is_plain(message) for message in before):
        return None
    rest = {name: value for name, value in last.items() if name != "content"}
    return Question(text, digest(_encoder.encode((before, rest, around))))


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Return whether a message is text alone: no tool's call or result, no image."""
    return (
        message.get("role") != "tool"
        and not message.get("tool_calls")
        and isinstance(message.get("content"), str | None)
    )
