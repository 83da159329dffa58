"""Detection of clients that do not read their responses."""

import math
import socket
import struct
from asyncio import Transport
from typing import Final

_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Unsent:
    """Watches the bytes that wait in a connection's buffer for a client that does not read."""

    def __init__(self, seconds: float) -> None:
        """Start with an empty buffer; ``seconds``: how long bytes may wait without becoming less."""
        self._seconds = seconds
        self._least = 0
        self._deadline = math.inf

    def drained(self) -> None:
        """Record that the buffer has become nearly empty, whatever is written to it next."""
        self._least = 0

    def overdue(self, now: float, transport: Transport, *, growing: bool) -> bool:
        """Return whether bytes have waited for so long that the client seems not to read.

        Args:
            now: the loop's time.
            transport: the connection's.
            growing: more is written at the same time, so that the buffer may grow in spite of a reader.
        """
        unsent = transport.get_write_buffer_size()
        if not unsent or growing:
            self._least = 0
        elif not self._least or unsent < self._least:
            self._least = unsent
            self._deadline = now + self._seconds
        return self._least > 0 and now >= self._deadline


def reset(transport: Transport) -> None:
    """End the connection at once. The kernel would keep for minutes what it has not sent yet."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
