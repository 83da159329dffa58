"""Variants of the app for particular connections."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from galley.protocols.common.errors import ApiError
from galley.protocols.http.errors import error_response
from galley.server.drain import PROBES


def only_probes(app: Any) -> Any:
    """Return the app for a connection beyond the limits, which answers probes alone."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        error = ApiError(
            503,
            "The server has as many connections as it may have (--max-connections, "
            "--max-connections-per-address)",
            type="service_unavailable",
            code="too_many_connections",
            headers={"Retry-After": "1", "Connection": "close"},
        )
        await error_response(error)(scope, receive, send)

    return answer


def until_closed(app: Any, cycle: RequestResponseCycle) -> Any:
    """Return the app for a client without chunked encoding: its response ends with the connection."""
    cycle.chunked_encoding = False

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def unframed(message: Any) -> None:
            # uvicorn compares the bytes sent with the announced length, and none was announced.
            cycle.expected_content_length += len(message.get("body", b""))
            await send(message)

        await app(scope, receive, unframed)

    return answer
