"""Authenticated frames over a blocking socket, for threads.

:mod:`galley.cluster.channel` is the same for event loops, and :mod:`galley.links.handshake` has the form of
frames and of the handshake.
"""

import socket
import ssl
import time
from contextlib import suppress
from typing import Self

from galley.links.access import Access
from galley.links.handshake import (
    HANDSHAKE_SECONDS,
    HASH_BYTES,
    LENGTH,
    BadFrame,
    Handshake,
    Seals,
    greet,
    receive,
)


class SealedSocket:
    """One end of a connection. One thread uses it at a time.

    Attributes:
        deadline: time on the monotonic clock at which waiting for the other side ends.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        """Wrap a connected socket; :meth:`shake_hands` comes first."""
        self.deadline = deadline
        self._socket = sock
        self._seals = Seals(b"", b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.hang_up()
        self._socket.close()

    def hang_up(self) -> None:
        """End the connection from any thread: the one that uses it then gets an OSError."""
        hang_up(self._socket)

    def detach(self) -> tuple[socket.socket, Seals]:
        """Return the socket and the seals, for another object to use instead of this one."""
        return self._socket, self._seals

    def shake_hands(self, handshake: Handshake) -> None:
        """Take the steps of this side's handshake, and raise its errors.

        Raises:
            OSError: the connection ended, or the other side did not answer in time.
        """
        step = next(handshake)
        try:
            while True:
                if isinstance(step, int):
                    step = handshake.send(self._exactly(step))
                else:
                    self._send(step)
                    step = next(handshake)
        except StopIteration as done:
            self._seals = done.value

    def send(self, *parts: "bytes | bytearray | memoryview") -> None:
        """Send a frame whose body is the parts, one after another.

        Raises:
            OSError: the connection ended, or the other side did not read in time.
        """
        sealed = self._seals.seal(*parts)
        for part in (LENGTH.pack(sum(map(len, parts))), *parts, sealed):
            self._send(part)

    def receive(self, most: int) -> bytearray:
        """Return the body of the next frame.

        Args:
            most: bytes that it may have.

        Raises:
            BadFrame: it is longer, or does not come from the other side.
            OSError: the connection ended, or the frame did not arrive in time.
        """
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > most:
            raise BadFrame(f"a frame of {length} bytes exceeds {most}")
        body = self._exactly(length)
        self._seals.check(body, self._exactly(HASH_BYTES))
        return body

    def _set_timeout(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the peer did not answer in time")
        self._socket.settimeout(left)

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        done = 0
        while done < count:
            self._set_timeout()
            got = self._socket.recv_into(view[done:])
            if not got:
                raise BadFrame("the peer closed the connection")
            done += got
        return data

    def _send(self, part: "bytes | bytearray | memoryview") -> None:
        self._set_timeout()
        self._socket.sendall(part)


def hang_up(sock: socket.socket) -> None:
    """End a connection, or the wait for one, of a socket that another thread uses and then closes."""
    with suppress(OSError):
        # SSLSocket's own method also drops the TLS state, which the other thread may be using.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 is any free one.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def connect(
    host: str, port: int, access: Access, deadline: float, *, within: float
) -> SealedSocket:
    """Connect to a peer and shake hands.

    Args:
        host: the peer's host.
        port: its port.
        access: the token and the certificates.
        deadline: see :attr:`SealedSocket.deadline`.
        within: seconds until the connection has to be there.

    Raises:
        SettingsError: the peer refuses, or does not have the token.
        OSError: the peer cannot be reached, or did not answer in time.
    """
    left = min(within, deadline - time.monotonic())
    if left <= 0:
        raise TimeoutError("there is no time left")
    raw = socket.create_connection((host, port), timeout=left)
    return _ready(raw, access.as_caller, deadline, access.token, host=host)


def accepted(raw: socket.socket, access: Access) -> SealedSocket:
    """Shake hands with a side that has connected.

    Raises:
        SettingsError: it does not have the token, or is another version of Galley.
        OSError: the connection ended, or it did not answer in time.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    return _ready(raw, access.as_replica, deadline, access.token, host=None)


def _ready(
    raw: socket.socket, tls: ssl.SSLContext | None, deadline: float, token: bytes, host: str | None
) -> SealedSocket:
    """Begin TLS, if there is any, and shake hands, as the caller if ``host`` is given."""
    try:
        raw.settimeout(max(0.001, deadline - time.monotonic()))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            raw = tls.wrap_socket(raw, server_side=host is None, server_hostname=host)
        ready = SealedSocket(raw, deadline)
        ready.shake_hands(receive(token) if host is None else greet(token))
    except BaseException:
        raw.close()
        raise
    return ready
