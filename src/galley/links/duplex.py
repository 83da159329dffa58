"""Authenticated frames in both directions of a connection at the same time, without waiting.

:mod:`galley.links.sockets` has the handshake, after which a connection continues in this form.
"""

import select
import socket
import ssl
import threading
from typing import Final

from galley.links.handshake import HASH_BYTES, LENGTH, BadFrame
from galley.links.sockets import SealedSocket, hang_up

LOST_SECONDS: Final = 20
"""About the time after which a machine that does not answer the system's own packets counts as lost."""

_PART_BYTES: Final = 1 << 18
"""Maximum bytes of a frame of a :class:`SealedStream`."""

_WAIT_SECONDS: Final = 5.0
"""A waiting thread checks its connection at least this often."""

_BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Duplex:
    """A non-blocking connection after the handshake. One thread uses it at a time.

    Args:
        connection: a connection whose handshake is done; nothing else may use it afterwards.
        most: bytes that a frame may have.
    """

    def __init__(self, connection: SealedSocket, most: int) -> None:
        self._socket, self._seals = connection.detach()
        self._socket.settimeout(0)
        _keep_alive(self._socket, LOST_SECONDS)
        self._most = most
        self._out: list[memoryview] = []
        self._body = False
        self._read = bytearray(LENGTH.size)
        self._filled = 0

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for."""
        return self._socket.fileno()

    def put(self, body: "bytes | memoryview") -> None:
        """Queue a frame; :meth:`flush` sends it. The body may change afterwards."""
        frame = b"".join((LENGTH.pack(len(body)), body, self._seals.seal(body)))
        self._out.append(memoryview(frame))

    def flush(self) -> bool:
        """Send what the connection takes now; return whether nothing is left.

        Raises:
            OSError: the connection has ended.
        """
        while self._out:
            first = self._out[0]
            try:
                sent = self._socket.send(first)
            except _BLOCKED:
                return False
            if sent < len(first):
                self._out[0] = first[sent:]
            else:
                self._out.pop(0)
        return True

    def take(self) -> memoryview | None:
        """Return the body of the next frame if it has arrived.

        Raises:
            BadFrame: it is too long, does not come from the other side, or the connection has ended.
            OSError: the connection has ended.
        """
        while True:
            if not self._fill():
                return None
            done = self._read
            self._filled = 0
            if not self._body:
                (length,) = LENGTH.unpack(done)
                if length > self._most:
                    raise BadFrame(f"a frame of {length} bytes exceeds {self._most}")
                self._body, self._read = True, bytearray(length + HASH_BYTES)
                continue
            self._body, self._read = False, bytearray(LENGTH.size)
            body = memoryview(done)[:-HASH_BYTES]
            self._seals.check(body, done[-HASH_BYTES:])
            return body

    def hang_up(self) -> None:
        """End the connection from any thread: the one that uses it then gets an OSError."""
        hang_up(self._socket)

    def close(self) -> None:
        """Close the connection."""
        self.hang_up()
        self._socket.close()

    def _fill(self) -> bool:
        view = memoryview(self._read)
        while self._filled < len(view):
            try:
                got = self._socket.recv_into(view[self._filled :])
            except _BLOCKED:
                return False
            if not got:
                raise BadFrame("the peer closed the connection")
            self._filled += got
        return True


class SealedStream:
    """A stream of bytes over a connection: several threads may send at the same time, and one may read.

    Its methods are those of a socket that carries a stream.
    """

    def __init__(self, connection: SealedSocket) -> None:
        self._duplex = Duplex(connection, _PART_BYTES)
        self._using = threading.Lock()  # TLS allows one thread at a time
        self._sending = threading.Lock()
        self._received = bytearray()

    def makefile(self, mode: str) -> "SealedStream":
        """Return an object with a method ``read``: this one."""
        assert mode == "rb"
        return self

    def sendall(self, data: bytes) -> None:
        """Send bytes. Raises OSError if the connection has ended."""
        view = memoryview(data)
        with self._sending:
            for start in range(0, len(view), _PART_BYTES):
                with self._using:
                    self._duplex.put(view[start : start + _PART_BYTES])
                while not self._flushed():
                    self._wait(select.POLLOUT)

    def read(self, count: int) -> bytes:
        """Return this many bytes, or fewer if the connection has ended."""
        try:
            while len(self._received) < count:
                with self._using:
                    body = self._duplex.take()
                if body is None:
                    self._wait(select.POLLIN)
                else:
                    self._received += body
        except OSError:
            with self._using:
                self._duplex.close()
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def shutdown(self, how: int) -> None:
        """End the connection in both directions, from any thread."""
        self._duplex.hang_up()

    def close(self) -> None:
        """Do nothing more: the thread that reads closes the socket once it has seen the end."""

    def wait_for_end(self) -> None:
        """Wait until the other side has ended the connection, or is lost."""
        poll = select.poll()
        # Without POLLRDHUP (other systems than Linux), an end that is not an error is not seen.
        poll.register(self._duplex.fileno(), getattr(select, "POLLRDHUP", 0))
        poll.poll()

    def _flushed(self) -> bool:
        with self._using:
            return self._duplex.flush()

    def _wait(self, event: int) -> None:
        poll = select.poll()
        if (file := self._duplex.fileno()) < 0:
            raise OSError("the connection is closed")
        poll.register(file, event)
        poll.poll(1000 * _WAIT_SECONDS)


def _keep_alive(connection: socket.socket, seconds: int) -> None:
    """Have the system end a connection whose other side has not answered for about this many seconds."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": max(1, seconds // 4),
        "TCP_KEEPINTVL": max(1, seconds // 4),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * seconds,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
