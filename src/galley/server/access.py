"""One log line, one count, one id and an answer for each request or WebSocket. Never its text or key."""

import logging
import math
import secrets
import time
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from galley.config import MOST_TIMEOUT
from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.observe.metrics import Metrics
from galley.server.drain import PROBES
from galley.server.errors import BEGINNINGS, CLIENT_GONE, error_response

log = logging.getLogger("galley.access")

TIMEOUT_HEADER: Final = "x-request-timeout"
"""Seconds from its arrival after which a request's answer is of no use."""

_TIMEOUT_CHARACTERS: Final = 32
_SWITCHING_PROTOCOLS: Final = 101


class AccessLog:
    """ASGI middleware, the outermost: what nobody else handles ends here.

    Leaves in ``scope["state"]``: ``request_id`` (also the header ``X-Request-Id``), ``arrived`` (on the
    monotonic clock) and ``record``, a dictionary to which others add what the log line will tell.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        arrived = time.monotonic()
        request_id = secrets.token_hex(12)
        record: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, arrived=arrived, record=record)
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in BEGINNINGS:
                status = message.get("status", _SWITCHING_PROTOCOLS)
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("request %s failed", request_id)
            if status is None:
                await error_response(error)(scope, receive, send_with_id)
        finally:
            endpoint = _route(scope)
            final = record.pop("status", status or CLIENT_GONE)
            account = scope["state"].get("account")
            self._metrics.request_answered(endpoint, final, account and account.tenant.name)
            log.log(
                logging.DEBUG if scope["path"] in PROBES else logging.INFO,
                "%s %s %d %.3fs id=%s%s",
                scope.get("method", "WS"),
                endpoint,
                final,
                time.monotonic() - arrived,
                request_id,
                "".join(f" {name}={value}" for name, value in record.items()),
            )


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
    return Caller(state.request_id, state.account, state.record, state.arrived, deadline)


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


def _route(scope: Scope) -> str:
    """The route's template: paths are the client's text, of any number and content."""
    return getattr(scope.get("route"), "path", "unknown")
