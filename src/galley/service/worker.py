"""The engine's process: ``python -m galley.service.worker FD NAME [BATON PLACE]``.

One thread reads frames from the socket, the main thread steps the engine. The process has no life of its
own: when the socket closes, because the server is done or dead, it exits at once. Terminal and
service-manager signals are for the server, which drains; the engine must outlive them.
"""

import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from galley.config import LOG_FORMAT
from galley.errors import GalleyError, ModelError, SettingsError
from galley.service.core_scheduler import CoreScheduler
from galley.service.frames import (
    HEADER,
    MAX_FRAME_BYTES,
    Abort,
    FromEngine,
    Phase,
    Ready,
    Start,
    StartFailed,
    Step,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
)

if TYPE_CHECKING:
    from galley.engine.engine import Engine


class Connection:
    """Blocking frames over the inherited socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._file = sock.makefile("rb")

    def send(self, frame: FromEngine) -> None:
        """Ends the process when the server is gone: then there is nobody to work for."""
        try:
            self._socket.sendall(encode(frame))
        except OSError:
            raise SystemExit(0) from None

    def receive(self) -> ToEngine | None:
        """The next frame, or None when the server has closed its end."""
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        (length,) = HEADER.unpack(header)
        assert length <= MAX_FRAME_BYTES
        body = self._file.read(length)
        return decode_to_engine(body) if len(body) == length else None


def main() -> None:
    """Serve one connection until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format=LOG_FORMAT)
    connection = Connection(socket.socket(fileno=int(sys.argv[1])))
    # Before the Start frame: the server is still busy with imports of its own.
    from galley.engine import load  # noqa: F401

    start = connection.receive()
    if start is None:
        return
    assert isinstance(start, Start)
    # Another device's engine leaves the cores alone.
    shares = len(sys.argv) > 3 and start.settings.device == "cpu"
    baton = CoreScheduler(int(sys.argv[3]), int(sys.argv[4])) if shares else None
    inbox: queue.SimpleQueue[Submit | Abort] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    try:
        engine = _load(start, connection, baton)
    except GalleyError as error:
        connection.send(StartFailed(_kind(error), str(error)))
        return
    gc.freeze()  # what is loaded stays; no collection in the midst of a stream need look at it
    _loop(engine, connection, inbox, baton)


def _load(start: Start, connection: Connection, baton: CoreScheduler | None) -> "Engine":
    connection.send(Phase("spawn", time.monotonic() - start.spawned_at))
    from galley.engine.load import load_engine

    engine = load_engine(
        start.settings,
        Path(start.folder),
        on_phase=lambda name, seconds: connection.send(Phase(name, seconds)),
        pause=None if baton is None else baton.pause,
    )
    connection.send(Ready(engine.info))
    return engine


def _kind(error: GalleyError) -> Literal["model", "settings", "engine"]:
    if isinstance(error, ModelError):
        return "model"
    return "settings" if isinstance(error, SettingsError) else "engine"


def _read(connection: Connection, inbox: "queue.SimpleQueue[Submit | Abort]") -> None:
    """Frames to the inbox; the end of the stream ends the process, whatever the engine is doing."""
    try:
        while (frame := connection.receive()) is not None:
            assert not isinstance(frame, Start)
            inbox.put(frame)
    except OSError:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _loop(
    engine: "Engine",
    connection: Connection,
    inbox: "queue.SimpleQueue[Submit | Abort]",
    baton: CoreScheduler | None,
) -> None:
    seen = 0
    while True:
        if baton is not None and not engine.has_work:
            baton.drop()
        seen += _take_frames(engine, inbox)
        if baton is not None and engine.has_work:
            baton.take(live=engine.is_live)
        # After an abort of the last request there is no work, but the books have changed.
        outputs = engine.step() if engine.has_work else []
        if engine.info.speech is not None:
            for output in outputs:
                if output.alignment is not None:
                    connection.send(Step([output], engine.stats, seen))
            outputs = [output for output in outputs if output.alignment is None]
        connection.send(Step(outputs, engine.stats, seen))


def _take_frames(engine: "Engine", inbox: "queue.SimpleQueue[Submit | Abort]") -> int:
    """Everything that has arrived, counted; sleeps for the next frame when there is no work."""
    count = 0
    with suppress(queue.Empty):
        # An abort is answered at once, even if it leaves nothing to do.
        while True:
            frame = inbox.get(block=not engine.has_work and not count)
            count += 1
            if isinstance(frame, Submit):
                engine.add(frame.request)
            else:
                engine.abort(frame.request_ids)
    return count


if __name__ == "__main__":
    main()
