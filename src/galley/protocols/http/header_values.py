"""Headers by name, for what reads several of each request or adds some to each response.

Starlette's mappings search a list for each name, and raise an exception for one that is not there.
"""

from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Scope

_LATIN: Final = "latin-1"
_KEY: Final = "header_values"


def header_values(scope: Scope) -> Mapping[str, str]:
    """Return the first value of each header of a request, by its name in lower case.

    They are read once and kept in the scope's state, as long as the scope has the same headers.
    """
    headers = scope["headers"]
    state = scope.setdefault("state", {})
    known, values = state.get(_KEY, (None, {}))
    if known is not headers:
        values = {n.decode(_LATIN): value.decode(_LATIN) for n, value in reversed(headers)}
        state[_KEY] = (headers, values)
    found: Mapping[str, str] = values
    return found


def set_headers(message: Message, headers: Mapping[str, str]) -> None:
    """Set headers of a message that starts a response, in place of those of the same names."""
    if not headers:
        return
    new = {name.lower().encode(_LATIN): value.encode(_LATIN) for name, value in headers.items()}
    kept = [header for header in message.get("headers", ()) if header[0] not in new]
    message["headers"] = [*kept, *new.items()]
