"""The caller of a request, and the deadline for its answer."""

import math
from typing import Final

import msgspec
from starlette.requests import HTTPConnection

from galley.cache.directives import read_directives
from galley.gateway.caller import Caller
from galley.protocols.http.gateway_headers import scheduling_of
from galley.protocols.http.header_times import time_in
from galley.protocols.http.header_values import header_values
from galley.service.releases import RELEASE_HEADER
from galley.settings.config import MOST_TIMEOUT, Settings

TIMEOUT_HEADER: Final = "x-request-timeout"
"""Seconds after a request's arrival until its deadline."""

_LOGGED_BYTES: Final = 16 * 1024
"""Bytes of a prompt that are logged."""


def caller_of(request: HTTPConnection, *, timeout: float = math.inf) -> Caller:
    """Return the caller, as the middlewares identified it, with the request's deadline.

    Args:
        request: its header ``x-request-timeout`` sets the deadline, in seconds after its arrival.
        timeout: seconds that apply without the header.

    Raises:
        RequestError: the header is not a valid number of seconds, or one about caching or scheduling is
            invalid.
    """
    state, headers = request.state, header_values(request.scope)
    scheduling = scheduling_of(headers, request.app.state.objectives)
    seconds = time_in(headers, TIMEOUT_HEADER, timeout, unit="seconds", most=MOST_TIMEOUT)
    return Caller(
        state.request_id,
        state.account,
        state.record,
        state.arrived,
        state.arrived + seconds,
        state.trace,
        directives=read_directives(headers),
        headers=state.headers,
        flow=scheduling.flow,
        objective=scheduling.priority,
        first_token_by=state.arrived + scheduling.first_token_seconds,
        release=headers.get(RELEASE_HEADER, ""),
    )


def note_prompt(caller: Caller, prompt: object, settings: Settings) -> None:
    """Add the beginning of a prompt to the log record, where prompts are logged."""
    if settings.log_prompts:
        text = msgspec.json.encode(prompt)[:_LOGGED_BYTES]
        caller.record["prompt_text"] = text.decode(errors="replace")
