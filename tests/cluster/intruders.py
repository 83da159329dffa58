"""What someone without the token may send to a port of a cluster."""

import os
import pickle
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

from galley.links.handshake import Hello, Proof

_SECONDS: Final = 30.0
"""Longer than any handshake may take: a connection that is open for longer fails the test."""


class _Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self._path),)


def _frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def messages(trap: Path) -> dict[str, bytes]:
    """Return what is sent; ``trap`` is a file that there is afterwards if something was unpickled."""
    hello = _frame(msgspec.msgpack.encode(Hello.new()))
    nested = b"\x82\xa5nonce" + b"\x91" * 1000
    pickled = pickle.dumps(_Touch(trap))
    return {
        "nothing": b"",
        "zeros": bytes(1 << 16),
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "oversize": b"\xff" * (1 << 16),
        "largest greeting": _frame(bytes(1024)),
        "nested": _frame(nested),
        "unknown fields": _frame(b"\x81\xa1x" + b"\x91" * 1000),
        "pickle": _frame(pickled),
        "greeting twice": hello + hello,
        "no proof": hello + _frame(msgspec.msgpack.encode(Proof())),
        "wrong proof": hello + _frame(msgspec.msgpack.encode(Proof(proof=bytes(32)))),
        "pickle as proof": hello + _frame(pickled),
        "oversize after greeting": hello + b"\xff" * (1 << 16),
    }


def answer_to(port: int, message: bytes) -> bytes:
    """Send a message, and return everything that comes back until the other side closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as made:
        got = bytearray()
        with suppress(ConnectionError):
            made.sendall(message)
            made.shutdown(socket.SHUT_WR)
            while data := made.recv(1 << 16):
                got += data
        return bytes(got)


def check_intruders(ports: list[int], trap: Path) -> None:
    """Check that strangers learn nothing at any of the ports but the reason why they are refused."""
    for port in ports:
        for name, message in messages(trap).items():
            got = answer_to(port, message)
            frames: list[bytes] = []
            while got:
                (length,) = struct.unpack_from("<I", got)
                frames.append(got[4 : 4 + length])
                got = got[4 + length :]
            assert len(frames) <= 2, name
            if frames:
                msgspec.msgpack.decode(frames[0], type=Hello)
            if len(frames) == 2:
                refused = msgspec.msgpack.decode(frames[1], type=Proof)
                assert not refused.proof, name
                assert "the token" in refused.refusal, name
    assert not trap.exists()


def ports_of(*pids: int) -> dict[int, int]:
    """Return the TCP ports at which processes and their children listen -> the process."""
    found: dict[int, int] = {}
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            for made in one.net_connections("tcp"):
                if made.status == psutil.CONN_LISTEN:
                    found[made.laddr.port] = one.pid
    return found


class Slow:
    """Connections that send a byte and then nothing."""

    def __init__(self, ports: list[int], each: int) -> None:
        self._made = [
            socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(each)
        ]
        for one in self._made:
            one.sendall(b"\x40")

    def __enter__(self) -> "Slow":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._made:
            one.close()
