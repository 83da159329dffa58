"""The engine's process: ``python -m galley.service.worker SOCKET ENGINE MODEL MEMORY [FILE PLACE]``.

SOCKET is the descriptor of the connection to the server, ENGINE the name of an engine's loader (see
``protocol.py``), and MODEL a name shown in the list of processes. MEMORY is the descriptor of the memory
for large inputs (see ``shared_tensors.py``), or "-"; FILE and PLACE are those of an engine that shares the
cores (see ``core_scheduler.py``).

One thread reads frames from the socket, and the main thread steps the engine. The process does not
outlive its socket: when the socket closes, because the server is done or dead, the engine is closed and
the process ends after :data:`CLOSE_SECONDS` at the latest. Terminal and service-manager signals are for
the server, which drains; the engine must outlive them.
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
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from galley import machine
from galley.errors import (
    EngineError,
    GalleyError,
    ModelError,
    NotEnoughMemory,
    RankKilled,
    SettingsError,
)
from galley.observe import logs
from galley.ops import background
from galley.service.core_scheduler import CoreScheduler
from galley.service.frames import (
    HEADER,
    MAX_FRAME_BYTES,
    Abort,
    AdapterLoaded,
    Alive,
    Blocks,
    FromEngine,
    LoadAdapter,
    Phase,
    Planned,
    Ready,
    Released,
    Start,
    StartFailed,
    Submit,
    ToEngine,
    UnloadAdapter,
    decode_to_engine,
    encode,
    steps_of,
)
from galley.service.inbox import Inbox
from galley.service.protocol import (
    AdapterEngine,
    Engine,
    EngineLoader,
    GatheringEngine,
    PublishingEngine,
    TransferringEngine,
    find_loader,
)
from galley.service.shared_tensors import PlacedTensors
from galley.service.watchdog import SIGN_OF_LIFE_SECONDS
from galley.types.block_hashes import BlockContent
from galley.types.transfers import TransferPlan

Frame: TypeAlias = Submit | Abort | LoadAdapter | UnloadAdapter


class Wake:
    """Wakes the engine's thread without a frame."""


Frames: TypeAlias = Inbox[Frame | Wake | None]
"""Frames received for the engine; None: the server has closed the connection."""

_WAKE: Final = Wake()

_READ_BYTES: Final = 1 << 16

CLOSE_SECONDS: Final = 1.0
"""Seconds for an engine to finish its step and close after the server has closed the connection."""

NICENESS: Final = 10
"""The engine's niceness, so that the server's short work for a request has precedence on a core."""


class Connection:
    """Blocking frames over the inherited socket."""

    def __init__(self, sock: socket.socket, memory: PlacedTensors | None = None) -> None:
        self._socket = sock
        self._memory = memory
        self._sending = threading.Lock()
        # Frames that were written together are read together, and all are there when the engine wakes.
        self._file = sock.makefile("rb", _READ_BYTES)

    def send(self, frame: FromEngine) -> None:
        """Send a frame; end the process if the server is gone, since it has no more work then."""
        data = encode(frame)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError:
            os._exit(0)

    def receive(self) -> ToEngine | None:
        """Return the next frame, or None when the server has closed its end."""
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        (length,) = HEADER.unpack(header)
        assert length <= MAX_FRAME_BYTES
        body = self._file.read(length)
        if len(body) < length:
            return None
        frame = decode_to_engine(body)
        if isinstance(frame, Submit) and frame.places:
            assert self._memory is not None
            return Submit(self._memory.restore(frame.request, frame.places))
        return frame


def main() -> None:
    """Serve one connection until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.start(os.environ.get(logs.FORMAT_VARIABLE, "text"))
    engine_name, memory, shared = sys.argv[2], sys.argv[4], sys.argv[5:]
    tensors = None if memory == "-" else PlacedTensors(int(memory))
    connection = Connection(socket.socket(fileno=int(sys.argv[1])), tensors)
    # Before the Start frame: the server is still busy with its own imports.
    loader: EngineLoader | SettingsError
    try:
        loader = find_loader(engine_name)
    except SettingsError as error:
        loader = error
    start = connection.receive()
    if start is None:
        return
    assert isinstance(start, Start)
    machine.reserve_for_others(start.promised)
    with suppress(OSError):
        os.nice(NICENESS)
    # An engine on another device does not use the cores.
    cores = None
    if shared and start.settings.device == "cpu":
        file, place = map(int, shared)
        cores = CoreScheduler(file, place)
    inbox = Frames()
    loaded = threading.Event()
    threading.Thread(target=_read, args=(connection, inbox, loaded), daemon=True).start()
    try:
        engine = _load(loader, start, connection, cores)
        if start.transfer is not None:
            _exchange_blocks(engine, start.transfer, inbox)
        publisher = _publisher(engine, start)
        seats, stores = start.settings.running_limit, background.is_busy()
        connection.send(Ready(engine.info, engine.stats, seats, stores=stores))
        loaded.set()
        gc.freeze()  # loaded objects stay; collections during a stream need not scan them
        _loop(engine, connection, inbox, cores, publisher)
    except RankKilled as error:
        # The supervisor is to see that this process was not at fault, and nor were its requests.
        logging.getLogger("galley.engine").error("%s", error)
        os.kill(os.getpid(), signal.SIGKILL)
    except GalleyError as error:
        connection.send(StartFailed(_kind(error), str(error)))
    except BaseException:
        # Threads of a third-party engine must not keep an idle process alive.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _load(
    loader: EngineLoader | SettingsError,
    start: Start,
    connection: Connection,
    cores: CoreScheduler | None,
) -> Engine:
    connection.send(Phase("spawn", time.monotonic() - start.spawned_at))
    if isinstance(loader, SettingsError):
        raise loader
    return loader(
        start.settings,
        Path(start.folder),
        on_phase=lambda name, seconds: connection.send(Phase(name, seconds)),
        pause=None if cores is None else cores.pause,
        on_ledger=lambda ledger: connection.send(Planned(ledger)),
    )


def _exchange_blocks(engine: Engine, plan: TransferPlan, inbox: Frames) -> None:
    """Have the engine exchange blocks with others. Raises SettingsError if it cannot."""
    if not isinstance(engine, TransferringEngine):
        raise SettingsError(
            f"role is {plan.role}, but this model's engine keeps no keys and values that others could use; "
            "leave it out"
        )
    engine.exchange_blocks(plan, lambda: inbox.put(_WAKE))


def _publisher(engine: Engine, start: Start) -> PublishingEngine | None:
    """Return the engine if the changes of its prefix cache are to be sent.

    Raises:
        SettingsError: their tokens, too, and it does not report them.
    """
    publisher = engine if start.publishes and isinstance(engine, PublishingEngine) else None
    if start.publishes_tokens:
        if publisher is None:
            raise SettingsError(
                "this model's engine does not report what its prefix cache holds; leave out kv_events"
            )
        publisher.record_block_contents()
    return publisher


def _kind(error: GalleyError) -> Literal["model", "settings", "memory", "engine"]:
    if isinstance(error, NotEnoughMemory):
        return "memory"
    if isinstance(error, ModelError):
        return "model"
    return "settings" if isinstance(error, SettingsError) else "engine"


def _read(connection: Connection, inbox: Frames, loaded: threading.Event) -> None:
    """Read frames into the inbox. The end of the stream ends the process, whatever the engine is doing."""
    try:
        while (frame := connection.receive()) is not None:
            assert not isinstance(frame, Start | Released)
            inbox.put(frame)
    except OSError:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    if loaded.is_set():
        inbox.put(None)
        time.sleep(CLOSE_SECONDS)
    os._exit(0)


class _SignsOfLife:
    """Reports to the server every second that the process is alive, and how long the step has taken so far.

    Waiting for the cores does not count as a step. The end of background work is reported at once: a server
    that stops may wait for it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._began: float | None = None
        threading.Thread(target=self._send_alive, daemon=True, name="galley-signs-of-life").start()

    def step_begins(self) -> None:
        self._began = time.monotonic()

    def step_ends(self) -> None:
        self._began = None

    def _send_alive(self) -> None:
        while True:
            if background.is_busy():
                background.finish(SIGN_OF_LIFE_SECONDS)
            else:
                time.sleep(SIGN_OF_LIFE_SECONDS)
            began = self._began
            seconds = 0.0 if began is None else time.monotonic() - began
            self._connection.send(Alive(seconds, stores=background.is_busy()))


def _loop(
    engine: Engine,
    connection: Connection,
    inbox: Frames,
    cores: CoreScheduler | None,
    publisher: PublishingEngine | None,
) -> None:
    """Step the engine whenever there is work and send the outputs, until the server disconnects.

    Args:
        engine: the engine.
        connection: the connection to the server.
        inbox: frames from the server.
        cores: the turns of engines on the cores, if they take turns.
        publisher: the engine, if the changes of its prefix cache are sent, too.
    """
    seen = 0
    signs = _SignsOfLife(connection)
    # Once: to look for the methods of a protocol takes as long as a small model.
    gather_seconds = engine.gather_seconds if isinstance(engine, GatheringEngine) else _no_wait
    while True:
        if cores is not None and not engine.has_work:
            cores.release()
        taken = _take_frames(engine, inbox, connection, gather_seconds)
        if taken is None:
            engine.close()
            os._exit(0)
        seen += taken
        if cores is not None and engine.has_work:
            cores.acquire(live=engine.is_live)
        # After an abort of the last request, there is no work, but the statistics have changed.
        signs.step_begins()
        outputs = engine.step() if engine.has_work else []
        signs.step_ends()
        if publisher is not None and (changes := publisher.take_block_changes()):
            connection.send(_blocks(changes, publisher.take_block_contents()))
        for step in steps_of(outputs, engine.stats, seen):
            connection.send(step)


def _blocks(changes: dict[bytes, bool], contents: dict[bytes, BlockContent]) -> Blocks:
    return Blocks(
        stored=[key for key, found in changes.items() if found],
        removed=[key for key, found in changes.items() if not found],
        contents=[content for key, content in contents.items() if changes.get(key)],
    )


def _no_wait() -> float:
    return 0.0


def _take_frames(
    engine: Engine, inbox: Frames, connection: Connection, gather_seconds: Callable[[], float]
) -> int | None:
    """Take everything that has arrived; sleep for the next frame when there is no work.

    Args:
        engine: the engine.
        inbox: the frames that have arrived.
        connection: the connection to the server.
        gather_seconds: returns how long an engine with work waits for a frame.

    Returns:
        The number of frames; None when the server has closed the connection.
    """
    count = 0
    with suppress(queue.Empty):
        # Answer an abort at once, even if it leaves no work.
        while True:
            seconds = 0.0 if count else None
            frame = inbox.get(gather_seconds() if engine.has_work else seconds)
            if frame is None:
                return None
            if isinstance(frame, Wake):
                return count
            count += 1
            if isinstance(frame, Submit):
                engine.add(frame.request)
            elif isinstance(frame, Abort):
                engine.abort(frame.request_ids)
            else:
                _take_adapter(engine, frame, connection)
    return count


def _take_adapter(
    engine: Engine, frame: LoadAdapter | UnloadAdapter, connection: Connection
) -> None:
    assert isinstance(engine, AdapterEngine), "guaranteed by TextInfo.adapters"
    adapter = frame.adapter
    if isinstance(frame, UnloadAdapter):
        engine.unload_adapter(adapter)
        return

    def answer(done: Future[object]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, GalleyError):
            error = EngineError(f"adapter {adapter.name} cannot be loaded: {error!r}")
        connection.send(AdapterLoaded(adapter.digest, None if error is None else str(error)))

    engine.load_adapter(adapter).add_done_callback(answer)


if __name__ == "__main__":
    main()
