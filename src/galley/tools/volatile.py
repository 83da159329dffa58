"""Lines at the start of a system prompt that differ between requests and defeat the prefix cache."""

import re
from collections.abc import Sequence
from typing import Any, Final

from galley.settings.engine import VolatileLines

_KNOWN: Final = re.compile(r"x-anthropic-billing-header:.*", re.IGNORECASE)
"""The line that Claude Code puts at the start of its system prompt."""


def settle(messages: Sequence[dict[str, Any]], how: VolatileLines) -> list[dict[str, Any]]:
    """Move or remove the known volatile lines of the first system message.

    Args:
        messages: in the form of :class:`galley.tools.conversation.Conversation`.
        how: "keep": leave the lines in place; "move": put them after all that a later request may
            share, in a system message after the last message, or before it where the answer
            continues that message; "drop": remove them.
    """
    settled = list(messages)
    first = messages[0] if messages else {}
    if how == "keep" or first.get("role") != "system":
        return settled
    lines = (first.get("content") or "").split("\n")
    volatile = [line for line in lines if _KNOWN.fullmatch(line.strip())]
    if not volatile:
        return settled
    rest = "\n".join(line for line in lines if line not in volatile).strip("\n")
    settled[:1] = [{**first, "content": rest}] if rest else []
    if how == "move":
        continued = bool(settled) and settled[-1].get("role") == "assistant"
        moved = {"role": "system", "content": "\n".join(volatile)}
        settled.insert(len(settled) - continued, moved)
    return settled
