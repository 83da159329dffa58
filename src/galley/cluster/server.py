"""``galley replica``: engines that servers on other machines use.

The engines are supervised by the same client as a server's own, so a crash here is resumed here. Each
server that connects gets the description of the model and the keys of the cached blocks, then submits
requests as to an engine process. When its connection ends, its requests are dropped: it has others continue
them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from galley.cluster.channel import Channel
from galley.cluster.listener import Listener
from galley.errors import GalleyError
from galley.links.access import Access
from galley.service.client import EngineClient
from galley.service.departures import FETCH_SECONDS
from galley.service.frames import (
    Abort,
    AdapterLoaded,
    Alive,
    Blocks,
    FromEngine,
    Leaving,
    LoadAdapter,
    Ready,
    Released,
    Submit,
    ToEngine,
    UnloadAdapter,
    bare,
    decode_to_engine,
    steps_of,
)
from galley.service.streams import OutputStream
from galley.service.watchdog import SIGN_OF_LIFE_SECONDS
from galley.types import Adapter, EngineRequest, Output, Timing

log = logging.getLogger("galley.cluster")

MOST_CONNECTIONS: Final = 64
"""Maximum servers that are connected at the same time."""

_FLUSH_POLL_SECONDS: Final = 0.02

_NEW_PART: Final = 1 / 16
"""Part of a new measurement in a mean over recent ones."""


class ReplicaServer:
    """Accepts servers and runs their requests. For use in one event loop.

    Attributes:
        prefill_seconds: mean time from a sequence's first step to its first token, of recent sequences.
    """

    def __init__(
        self, client: EngineClient, access: Access, contents: str, release: str = ""
    ) -> None:
        """Create it.

        Args:
            client: the engines, which are ready.
            access: the token and the certificates.
            contents: digest of the checkpoint's files.
            release: name of the release that the engines serve, if they have one.
        """
        self._client = client
        self._contents = contents
        self._release = release
        self._listener = Listener(access, self._accept)
        self._open = 0
        self.prefill_seconds = 0.0
        self._leaving = False
        self._callers: set[_Caller] = set()

    def listen(self, host: str, port: int) -> int:
        """Accept connections from now on; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        return self._listener.listen(host, port)

    def blocks_changed(self, blocks: Blocks) -> None:
        """Report a change of what the prefix cache holds to all servers."""
        for caller in self._callers:
            caller.send(blocks)

    async def leave(self, seconds: float) -> None:
        """Have the servers continue their requests elsewhere; wait for those that cannot be."""
        self._leaving = True
        for caller in self._callers:
            caller.send(Leaving())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._client.in_flight:  # noqa: ASYNC110 - aborts and results both count
                    await asyncio.sleep(_FLUSH_POLL_SECONDS)
                await self._fetched()

    async def _fetched(self) -> None:
        """Wait until requests that were here have continued elsewhere: they may fetch blocks from here."""
        if not any(one.offers for one in self._client.fleet.replicas):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_SECONDS):
                while not all(one.released for one in self._callers):  # noqa: ASYNC110
                    await asyncio.sleep(_FLUSH_POLL_SECONDS)

    async def close(self) -> None:
        """Accept no more connections, and end those that there are."""
        self._listener.close()
        for caller in list(self._callers):
            await caller.channel.close()

    async def _accept(self, channel: Channel, peer: str) -> None:
        if self._open >= MOST_CONNECTIONS:
            log.warning("%s: more than %d connections", peer, MOST_CONNECTIONS)
            return
        self._open += 1
        try:
            await self._serve(channel)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s: connection ended: %s", peer, error or "no answer in time")
        finally:
            self._open -= 1

    async def _serve(self, channel: Channel) -> None:
        caller = _Caller(channel, self._client, self._note)
        fleet = self._client.fleet
        while self._client.state != "ready":
            await fleet.change()
        caller.send(
            Ready(
                self._client.info,
                self._client.stats,
                sum(replica.seats for replica in fleet.replicas),
                self._contents,
                self._release,
            )
        )
        caller.send(Blocks(list(set().union(*(one.blocks for one in fleet.replicas))), []))
        if self._leaving:
            caller.send(Leaving())
        self._callers.add(caller)
        beating = asyncio.create_task(caller.beat())
        try:
            async for bodies in channel.frames():
                for body in bodies:
                    caller.take(decode_to_engine(body))
        finally:
            self._callers.discard(caller)
            beating.cancel()
            caller.drop_all()

    def _note(self, timing: Timing) -> None:
        prefill = timing.first_token - timing.queued
        self.prefill_seconds += (prefill - self.prefill_seconds) * _NEW_PART


class _Caller:
    """A server that is connected, and its requests.

    Attributes:
        released: whether others continue the requests that it had here.
    """

    def __init__(
        self, channel: Channel, client: EngineClient, note: Callable[[Timing], None]
    ) -> None:
        self.channel = channel
        self.released = False
        self._note = note
        self._client = client
        self._streams: dict[str, OutputStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen = 0
        self._outputs: list[Output] = []
        self._flushing = False

    def send(self, frame: FromEngine) -> None:
        """Queue a frame."""
        self.channel.send(bare(frame))

    def take(self, frame: ToEngine) -> None:
        """Act on a frame of the server."""
        self._seen += 1
        if isinstance(frame, Submit):
            self._submit(frame.request)
        elif isinstance(frame, Abort):
            for request_id in frame.request_ids:
                if stream := self._streams.pop(request_id, None):
                    stream.cancel()
            # Confirm the aborts, also where there is no work.
            self._flush_soon()
        elif isinstance(frame, LoadAdapter):
            self._run(self._load(frame.adapter))
        elif isinstance(frame, UnloadAdapter):
            self._client.unload_adapter(frame.adapter)
        elif isinstance(frame, Released):
            self.released = True

    async def beat(self) -> None:
        """Give signs of life while the engines work."""
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)
            if self._client.state == "ready":
                self.send(Alive(0.0))

    def drop_all(self) -> None:
        """Drop the requests of a server that has gone."""
        for stream in self._streams.values():
            stream.cancel()
        for task in self._tasks:
            task.cancel()

    def _submit(self, request: EngineRequest) -> None:
        # Ids of several servers may be equal. The server has chosen the release.
        name = f"{id(self):x}-{self._seen}-{request.id}"
        unique = msgspec.structs.replace(request, id=name, release="")
        try:
            stream = self._client.submit(unique)
        except GalleyError as error:
            self._fail(request.id, error)
            return
        self._streams[request.id] = stream
        self._run(self._pass_on(request.id, stream))

    async def _pass_on(self, request_id: str, stream: OutputStream) -> None:
        try:
            async for output in stream:
                if self._streams.get(request_id) is not stream:
                    return
                if output.finish_reason is not None:
                    del self._streams[request_id]
                    if output.timing is not None:
                        self._note(output.timing)
                self._outputs.append(msgspec.structs.replace(output, request_id=request_id))
                self._flush_soon()
        except GalleyError as error:
            # Too much was unread; without an end, the server would wait for more.
            if self._streams.pop(request_id, None) is stream:
                self._fail(request_id, error)

    def _fail(self, request_id: str, error: GalleyError) -> None:
        self._outputs.append(Output(request_id=request_id, finish_reason="error", error=str(error)))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send the outputs after the other readers of the same step have had their turn."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        outputs, self._outputs = self._outputs, []
        for step in steps_of(outputs, self._client.stats, self._seen):
            self.send(step)

    async def _load(self, adapter: Adapter) -> None:
        error = None
        try:
            await self._client.load_adapter(adapter)
        except GalleyError as refusal:
            error = str(refusal)
        self.send(AdapterLoaded(adapter.digest, error))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
