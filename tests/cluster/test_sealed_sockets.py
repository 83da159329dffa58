"""Sealed sockets over TCP and TLS: other threads can end them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from galley.links.access import Access
from galley.links.sockets import SealedSocket, accepted, connect
from tests.cluster.authority import Authority

SECRET = b"a secret of both machines"


@pytest.fixture(params=["tcp", "tls"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Access:
    if request.param == "tcp":
        return Access(SECRET, None, None)
    token = tmp_path / "token"
    token.write_bytes(SECRET)
    return Authority(tmp_path, "ours").access(token)


@contextmanager
def pair(access: Access) -> Iterator[tuple[SealedSocket, SealedSocket]]:
    """Yield both ends of a connection: of the side that has accepted it, and of the other one."""
    sides: list[SealedSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepts = threading.Thread(
            target=lambda: sides.append(accepted(listener.accept()[0], access))
        )
        accepts.start()
        port = listener.getsockname()[1]
        with connect("127.0.0.1", port, access, time.monotonic() + 20, within=5) as caller:
            accepts.join()
            with sides[0]:
                yield sides[0], caller


def test_another_thread_ends_a_wait(access: Access) -> None:
    with pair(access) as (near, _):
        timer = threading.Timer(0.1, near.hang_up)
        timer.start()
        with pytest.raises(ConnectionError):
            near.receive(10)
        with pytest.raises(OSError):  # noqa: PT011  (which one differs with TLS)
            near.send(b"x" * 10)
        timer.join()
