"""Replicas behind real sockets in the test's own process, which decides when each of them computes."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

from galley.cluster.remote import remote_source
from galley.cluster.server import ReplicaServer
from galley.links.access import Access
from galley.service.client import EngineClient
from galley.service.frames import Abort, Blocks, FromEngine, Ready, Submit, ToEngine, steps_of
from galley.service.links import EngineLink, ReplicaSource
from galley.service.protocol import Engine, PublishingEngine
from galley.service.watchdog import Watchdog
from galley.settings.engine import EngineSettings
from tests.cluster.toy_link import JumpingLoop

ACCESS: Final = Access(b"a secret of both machines", None, None)
SEATS: Final = 4
_ON_THE_WAY_SECONDS: Final = 2e-4


class _PatientSelector(selectors.DefaultSelector):
    """Lets time jump only once no bytes are on their way."""

    loop: "PatientLoop"

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if found or not timeout:
            return found
        found = super().select(_ON_THE_WAY_SECONDS)
        if not found:
            self.loop.now += timeout
        return found


class PatientLoop(JumpingLoop):
    """An event loop in which waiting takes no time, other than for what other sockets have sent."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _PatientSelector()
        selector.loop = self
        asyncio.SelectorEventLoop.__init__(self, selector)


async def settled() -> None:
    """Wait until everything that was sent has been received, and acted on."""
    await asyncio.sleep(0.2)


class SteppedEngine:
    """A link to an engine in this process, which computes a step when it is told to.

    Args:
        engine: the engine.
        on_end: gets the engine once it has dropped its requests, as if its process had ended.
    """

    pid = None

    def __init__(self, engine: Engine, on_end: Callable[[Engine], None]) -> None:
        self.frames_sent = 0
        self.ended = False
        self._engine = engine
        self._on_end = on_end
        self._had: list[str] = []
        self._frames: asyncio.Queue[FromEngine | None] = asyncio.Queue()
        self._frames.put_nowait(Ready(engine.info, engine.stats, SEATS))

    def send(self, frame: ToEngine) -> None:
        self.frames_sent += 1
        if isinstance(frame, Submit):
            self._had.append(frame.request.id)
            self._engine.add(frame.request)
        elif isinstance(frame, Abort):
            self._engine.abort(frame.request_ids)

    def step(self) -> None:
        if self.ended:
            return
        outputs = self._engine.step() if self._engine.has_work else []
        if isinstance(self._engine, PublishingEngine) and (
            changes := self._engine.take_block_changes()
        ):
            stored = [key for key, found in changes.items() if found]
            removed = [key for key, found in changes.items() if not found]
            self._frames.put_nowait(Blocks(stored, removed))
        for step in steps_of(outputs, self._engine.stats, self.frames_sent):
            self._frames.put_nowait(step)

    async def frames(self) -> AsyncIterator[list[FromEngine]]:
        while (frame := await self._frames.get()) is not None:
            yield [frame]

    def kill(self) -> None:
        if not self.ended:
            self.ended = True
            self._engine.abort(self._had)
            while self._engine.has_work:
                self._engine.step()
            self._on_end(self._engine)
            self._frames.put_nowait(None)

    async def close(self) -> int:
        self.kill()
        return 0


class Node:
    """A replica: its engine, and the server that others reach it by.

    Args:
        make: creates its engine.
        release: the release that it serves; also its version.
    """

    def __init__(self, make: Callable[[], EngineLink], release: str = "") -> None:
        self.release = release
        self.port = 0
        self.gone = False
        self.engine: Any = None
        self._make = make

    async def start(self) -> None:
        """Start the engine, and listen."""

        async def connect() -> EngineLink:
            self.engine = self._make()
            return self.engine  # type: ignore[no-any-return]

        self.client = new_client(remotes=[ReplicaSource(name="0", connect=connect, seats=SEATS)])
        self.client.launch()
        await self.client.ready()
        self.server = ReplicaServer(self.client, ACCESS, self.release, self.release)
        self.port = self.server.listen("127.0.0.1", 0)

    def source(self) -> ReplicaSource:
        """Return how a server reaches it."""
        source = remote_source(f"127.0.0.1:{self.port}", ACCESS, SEATS)
        return ReplicaSource(
            name=source.name,
            connect=source.connect,
            seats=SEATS,
            remote=True,
            release=self.release,
        )

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close the sockets of all connections, and take no others."""
        self.server._listener.close()
        for caller in list(self.server._callers):
            caller.channel.abort()

    def heal(self) -> None:
        """Take connections again."""
        if not self.gone and not self.server._listener.is_open:
            self.server.listen("127.0.0.1", self.port)

    async def kill(self) -> None:
        """End without a word."""
        if not self.gone:
            self.gone = True
            self.cut()
            await self.client.close()

    async def leave(self) -> None:
        """End as after SIGTERM."""
        await self.server.leave(60)
        await self.kill()


def new_client(**plan: Any) -> EngineClient:
    """Return a client of engines that nothing but the test stops."""
    return EngineClient(
        EngineSettings(max_running=SEATS),
        "/m",
        max_queue=1000,
        replicas=0,
        watchdog=lambda: Watchdog(1e9, 0),
        **plan,
    )


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks, and raise what they have raised."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
