"""Sealed sockets over TCP and TLS: other threads can end them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from galley.links.access import Access
from galley.links.duplex import Duplex, SealedStream
from galley.links.sockets import SealedSocket, accepted, connect
from galley.links.strangers import Strangers
from tests.server.serving import until


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


def test_both_sides_send_more_than_a_connection_holds_before_either_reads(access: Access) -> None:
    """Blocking sockets would wait for each other forever."""
    bodies = [bytes([i]) * (4 << 20) for i in range(2)]
    with pair(access) as ends:
        sides = [Duplex(end, len(bodies[0])) for end in ends]
        for side, body in zip(sides, bodies, strict=True):
            side.put(body)
        got: list[bytes | None] = [None, None]
        sent = [False, False]
        deadline = time.monotonic() + 30
        while (None in got or not all(sent)) and time.monotonic() < deadline:
            for i, side in enumerate(sides):
                sent[i] = sent[i] or side.flush()
                if got[i] is None and (taken := side.take()) is not None:
                    got[i] = bytes(taken)
        assert got == bodies[::-1]


def test_a_stream_is_read_while_threads_write(access: Access) -> None:
    with pair(access) as ends:
        near, far = map(SealedStream, ends)
        parts = [bytes([i]) * 300_000 for i in range(3)]
        writers = [threading.Thread(target=near.sendall, args=(part,)) for part in parts]
        writers.append(threading.Thread(target=far.sendall, args=(b"back",)))
        for writer in writers:
            writer.start()
        assert near.read(4) == b"back"
        assert {far.read(300_000) for _ in parts} == set(parts)
        for writer in writers:
            writer.join()
        near.shutdown(socket.SHUT_RDWR)
        assert far.read(1) == b""
        assert near.read(1) == b""
        with pytest.raises(OSError):  # noqa: PT011  (which one differs with TLS)
            near.sendall(b"x")


def test_another_thread_ends_a_wait(access: Access) -> None:
    with pair(access) as (near, _):
        timer = threading.Timer(0.1, near.hang_up)
        timer.start()
        with pytest.raises(ConnectionError):
            near.receive(10)
        with pytest.raises(OSError):  # noqa: PT011  (which one differs with TLS)
            near.send(b"x" * 10)
        timer.join()


def test_a_further_stranger_replaces_the_oldest(access: Access) -> None:
    strangers, threads = Strangers(1), []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet(raw: socket.socket) -> None:
            with pytest.raises(OSError):  # noqa: PT011  (which one differs with TLS)
                accepted(raw, access)

        def stranger() -> socket.socket:
            made = socket.create_connection(listener.getsockname())
            raw, _ = listener.accept()
            strangers.add(raw)
            threads.append(threading.Thread(target=greet, args=(raw,)))
            threads[-1].start()
            if access.as_replica is not None:
                until(lambda: raw.fileno() < 0)  # TLS has taken it over
            return made

        with stranger() as oldest, stranger() as other:
            oldest.settimeout(5)
            assert oldest.recv(1) == b""
            strangers.close()
            other.settimeout(5)
            assert other.recv(1) == b""
        for thread in threads:
            thread.join()
