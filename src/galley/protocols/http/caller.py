"""Who asks, and until when the answer is of use."""

import math
from typing import Final

import msgspec
from starlette.requests import HTTPConnection

from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.settings.config import MOST_TIMEOUT, Settings

TIMEOUT_HEADER: Final = "x-request-timeout"
"""Seconds from its arrival after which a request's answer is of no use."""

_TIMEOUT_CHARACTERS: Final = 32

_LOGGED_BYTES: Final = 16 * 1024
"""Of a prompt that is logged."""


def caller_of(request: HTTPConnection, *, timeout: float = math.inf) -> Caller:
    """Who asks, as the middlewares found out, and until when the answer is of use.

    Args:
        request: whose header ``x-request-timeout`` says how many seconds after its arrival that is.
        timeout: what holds without the header, in seconds.

    Raises:
        RequestError: the header is no number of seconds.
    """
    state = request.state
    deadline = state.arrived + _timeout(request.headers.get(TIMEOUT_HEADER), timeout)
    return Caller(
        state.request_id, state.account, state.record, state.arrived, deadline, state.trace
    )


def note_prompt(caller: Caller, prompt: object, settings: Settings) -> None:
    """Put the beginning of a prompt into the log record, where prompts are logged."""
    if settings.log_prompts:
        text = msgspec.json.encode(prompt)[:_LOGGED_BYTES]
        caller.record["prompt_text"] = text.decode(errors="replace")


def _timeout(given: str | None, default: float) -> float:
    if given is None:
        return default
    try:
        seconds = float(given) if len(given) < _TIMEOUT_CHARACTERS else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MOST_TIMEOUT:
        raise RequestError(
            f"The header {TIMEOUT_HEADER} is {given[:_TIMEOUT_CHARACTERS]!r}; it takes seconds, above 0 "
            f"and at most {MOST_TIMEOUT:.0f}",
            param=TIMEOUT_HEADER,
        )
    return seconds
