"""A file that is sent while it is made."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from galley.errors import GalleyError
from galley.protocols.common.errors import to_api_error
from galley.protocols.http.errors import CLIENT_GONE, ClientGone, note_error
from galley.protocols.http.sse import while_connected

log = logging.getLogger("galley.server")


class ByteStream(Response):
    """A file in parts. ``close`` is always called, even if the client hung up before the first part.

    An error midway cuts the connection, so that no client takes what it has for the whole file.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        close: Callable[[], None],
        *,
        media_type: str,
    ) -> None:
        super().__init__(media_type=media_type, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._parts = parts
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; return when it is complete or the client has hung up."""
        try:
            await while_connected(receive, self._send_all(send, scope))
        except ClientGone:
            scope["state"]["record"]["status"] = CLIENT_GONE
        finally:
            self._close()

    async def _send_all(self, send: Send, scope: Scope) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._parts) as parts:
            await send(start)
            try:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except GalleyError as error:
                noted = to_api_error(error)
                note_error(scope, noted)
                scope["state"]["record"]["status"] = noted.status
                log.warning(
                    "the file of request %s ends early: %s", scope["state"]["request_id"], error
                )
                raise
        await send({"type": "http.response.body", "body": b"", "more_body": False})
