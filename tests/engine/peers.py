"""An engine that offers its blocks, and what may lie between it and another one."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.settings.engine import EngineSettings
from galley.types.transfers import KVPeer, TransferPlan

Spoil = Callable[[bytes, int], bytes | None]
"""Takes bytes on their way to the one who fetches, and how many came before; None: hang up."""


def engine_of(folder: Path, **chosen: Any) -> Engine:
    """Return an engine that exchanges nothing yet."""
    chosen = {"threads": 1, "kv_cache_tokens": 512, "speculation": "off", **chosen}
    return load_engine(EngineSettings(**chosen), folder)


def decoder(folder: Path, token: Path, *, seconds: float = 20.0, **chosen: Any) -> Engine:
    """Return an engine that fetches blocks of others."""
    engine = engine_of(folder, **chosen)
    plan = TransferPlan(role="decode", seconds=seconds, cluster_token_file=str(token))
    engine.exchange_blocks(plan, lambda: None)
    return engine


class Peer:
    """An engine whose thread steps it whenever it has work."""

    def __init__(self, engine: Engine, token: Path, *, role: str = "prefill", **plan: Any) -> None:
        self.engine = engine
        self._work = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        whole = TransferPlan(role=role, cluster_token_file=str(token), **plan)  # type: ignore[arg-type]
        engine.exchange_blocks(whole, self._work.set)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._work.set()
        self._thread.join()
        self.engine.close()

    def _run(self) -> None:
        while not self._ends:
            self._work.wait()
            self._work.clear()
            while self.engine.has_work:
                self.engine.step()
                self.engine.check_blocks()

    def at(self, tokens: int, port: int | None = None) -> KVPeer:
        """Return where it is; ``port``: that of a relay."""
        here = self.engine.info.transfers
        assert here is not None
        return KVPeer(here.host, port or here.port, tokens)


class Relay:
    """A port before another one, which may change what comes back."""

    def __init__(self, port: int, spoil: Spoil) -> None:
        self._port = port
        self._spoil = spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open += [near, far]
            for source, sink, spoil in ((near, far, None), (far, near, self._spoil)):
                threading.Thread(target=_pass_on, args=(source, sink, spoil), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, spoil: Spoil | None) -> None:
    done = 0
    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):  # one side has hung up
        while data := source.recv(1 << 14):
            passed = data if spoil is None else spoil(data, done)
            done += len(data)
            if passed is None:
                break
            sink.sendall(passed)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
