"""Connections that shake hands, on threads: whoever has no token cannot keep out those who have it."""

import socket
import threading
from collections.abc import Callable

from galley.links.sockets import hang_up


class Strangers:
    """Sockets that have been accepted and shake hands. For use on several threads.

    Args:
        most: how many there are at most; each further one replaces the oldest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._handles: dict[socket.socket, socket.socket] = {}
        """Socket -> a duplicate, which can end the connection after TLS has taken it over; oldest first."""

    def greet(self, raw: socket.socket, serve: Callable[[socket.socket], None], name: str) -> None:
        """Add a socket, and start a thread for it.

        Args:
            raw: an accepted socket; it is closed if there is no thread for it.
            serve: shakes hands, calls :meth:`remove`, serves the other side, and closes the socket.
            name: the thread's name.

        Raises:
            OSError, RuntimeError: there is no descriptor or no thread left.
        """
        try:
            self.add(raw)
            threading.Thread(target=serve, args=(raw,), daemon=True, name=name).start()
        except (OSError, RuntimeError):
            self.remove(raw)
            raw.close()
            raise

    def add(self, raw: socket.socket) -> None:
        """Add a socket, and hang up on the oldest if there are too many.

        Raises:
            OSError: there is no descriptor left.
        """
        handle, oldest = raw.dup(), None
        with self._lock:
            if len(self._handles) >= self._most:
                oldest = self._handles.pop(next(iter(self._handles)))
            self._handles[raw] = handle
        if oldest is not None:
            _end(oldest)

    def remove(self, raw: socket.socket) -> bool:
        """Remove a socket once the handshake is over; return False if it has been hung up on."""
        with self._lock:
            handle = self._handles.pop(raw, None)
        if handle is not None:
            handle.close()
        return handle is not None

    def close(self) -> None:
        """Hang up on all of them."""
        with self._lock:
            handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            _end(handle)


def _end(handle: socket.socket) -> None:
    hang_up(handle)
    handle.close()
