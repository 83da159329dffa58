"""A connection on which a test writes raw HTTP, valid or not."""

import socket
from types import TracebackType
from typing import Self

import httpx
import psutil

from tests.server.serving import Server

CHAT = "/v1/chat/completions"


class Raw:
    """A connection, opened on creation."""

    def __init__(
        self, server: Server, timeout: float = 30, receive_buffer: int = 0, source: str = ""
    ) -> None:
        self.socket = socket.socket()
        if source:
            self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", server.port))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, *lines: str, body: bytes = b"") -> Self:
        """Send complete lines, without the empty one that ends the headers, then bytes."""
        self.socket.sendall("".join(f"{line}\r\n" for line in lines).encode() + body)
        return self

    def post(self, *headers: str, path: str = CHAT) -> Self:
        """Send the headers of a request whose body may follow."""
        return self.send(
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            *headers,
            "",
        )

    def send_until_refused(self, data: bytes, times: int) -> int:
        """Return how often the server accepted ``data``, at most ``times``."""
        for sent in range(times):
            try:
                self.socket.sendall(data)
            except OSError:
                return sent
        return times

    def rest(self) -> bytes:
        """Return everything up to the end or reset of the connection."""
        received = b""
        try:
            while data := self.socket.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        return received

    def answer(self) -> httpx.Response:
        """Return the answer, after which the server must have closed the connection."""
        return parsed(self.rest())


def parsed(received: bytes) -> httpx.Response:
    """Return an answer, skipping responses with status 1xx before it."""
    while received.startswith(b"HTTP/1.1 100 "):
        received = received.partition(b"\r\n\r\n")[2]
    head, end, body = received.partition(b"\r\n\r\n")
    assert end, received[:200]
    status, *lines = head.decode().split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def connections(server: Server) -> int:
    """Return how many TCP connections the server has open."""
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(connection.status != "LISTEN" for connection in found)
