"""WebSockets as uvicorn speaks them, ended by a close code where uvicorn resets the connection.

Imported with the first WebSocket, because it needs the package ``websockets``.
"""

from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from galley.server.front_door import Admission

_INVALID_DATA: Final = 1007
"""Close code of text that is not UTF-8 (RFC 6455, 7.4.1)."""

_LINGER_SECONDS: Final = 2.0


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from its handshake on.

    Attributes:
        admission: its place among the connections, given back when it is lost.
    """

    admission: Admission

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_lost(exc)
        self.admission.leave()

    def send_receive_event_to_app(self) -> None:
        """Hand a complete message to the app, if it is one."""
        if self.curr_msg_data_type == "text":
            data = b"".join(self.frames)
            try:
                data.decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(_INVALID_DATA, "text that is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Tell the client why, and close when it has had the time to read that (RFC 9112, 9.6).

        What it still sends is read and thrown away: closing on unread bytes resets the connection, and
        the close code would be lost.
        """
        if self.close_sent or self.conn.close_sent is None:
            return
        self.stop_keepalive()
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    async def send(self, message: Any) -> None:
        """See ASGI; a handshake that is refused has the headers of every other answer."""
        if message["type"] == "websocket.http.response.start":
            message = {**message, "headers": [*self.default_headers, *message.get("headers", [])]}
        await super().send(message)
