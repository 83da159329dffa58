"""Drain of the server: new requests are refused and running ones counted."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from galley.errors import Draining
from galley.gateway.lifecycle import RETRY_SECONDS, Lifecycle
from galley.protocols.http.errors import error_response
from galley.server.auth import OPEN_PATHS

PROBES: Final = OPEN_PATHS | {"/metrics"}
"""Paths answered in every state; they neither wait for a drain nor delay it."""


class DrainGate:
    """ASGI middleware: counts requests in flight and refuses new ones while draining."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._lifecycle.is_draining:
            error = Draining("The server is shutting down", retry_after=RETRY_SECONDS)
            await error_response(error)(scope, receive, send)
            return
        self._lifecycle.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._lifecycle.leave()
