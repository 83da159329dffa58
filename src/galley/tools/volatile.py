"""Lines at a system prompt's head that differ from request to request, which no prefix cache can serve."""

import re
from collections.abc import Sequence
from typing import Any, Final

from galley.settings.engine import VolatileLines

_KNOWN: Final = re.compile(r"x-anthropic-billing-header:.*", re.IGNORECASE)
"""Claude Code's, in front of all else that it says."""


def settle(messages: Sequence[dict[str, Any]], how: VolatileLines) -> list[dict[str, Any]]:
    """The messages with the known volatile lines of the first system message where a setting wants them.

    Args:
        messages: as :class:`galley.tools.conversation.Conversation` has them.
        how: "keep": as they are; "move": behind all that a later request may share, in a system message
            behind the last message, or before it where the answer continues that; "drop": nowhere.
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
