"""The engines of one model that servers elsewhere use, from their start to their end."""

import asyncio
import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from galley.cluster.server import ReplicaServer
from galley.cluster.share import fleet_of, share_of_machine
from galley.formats.model_files import files_digest
from galley.formats.source import resolve_model
from galley.links.access import Access
from galley.service.client import EngineClient
from galley.service.frames import Blocks
from galley.service.spawn import Spawner
from galley.service.watchdog import Watchdog
from galley.settings.config import Settings

MOST_QUEUED: Final = 1_000_000
"""Servers admit requests; here, none is refused."""


@dataclass(frozen=True)
class Load:
    """The pending work of the engines.

    Attributes:
        requests: unfinished sequences.
        running: sequences that are being computed.
        waiting: sequences that wait for a seat.
        seats: sequences that may be computed at the same time.
        first_token_seconds: predicted time to the first token of a new request.
    """

    requests: int
    running: int
    waiting: int
    seats: int
    first_token_seconds: float


class ReplicaHost:
    """Supervises the engines and serves them. For use in one event loop.

    Attributes:
        client: the client of the engines; None before :meth:`start`.
        server: accepts servers; None before :meth:`listen`.
    """

    def __init__(self, settings: Settings, access: Access, release: str = "") -> None:
        """Create it; :meth:`start` starts the engines.

        Args:
            settings: those of ``galley replica``.
            access: the token and the certificates.
            release: name of the release that the engines serve, if they have one.
        """
        self.client: EngineClient | None = None
        self.server: ReplicaServer | None = None
        self._settings = settings
        self._access = access
        self._release = release
        self._contents = b""

    async def start(self) -> None:
        """Fetch the model if needed, start the engines and wait until they are ready.

        Raises:
            ModelError, SettingsError, EngineFailed: the model or the settings cannot be used.
        """
        settings = self._settings
        folder = await asyncio.to_thread(resolve_model, settings.model, revision=settings.revision)
        contents = asyncio.create_task(asyncio.to_thread(files_digest, folder))
        spawner = Spawner(settings)
        self.client = EngineClient(
            share_of_machine(settings, settings.replicas),
            str(folder),
            max_queue=MOST_QUEUED,
            begin=lambda: spawner.spawn(settings),
            watchdog=lambda: Watchdog(settings.stall_seconds, settings.step_timeout),
            on_blocks=self._blocks_changed,
            **fleet_of(settings),
        )
        self.client.launch()
        await self.client.ready()
        self._contents = await contents

    async def listen(self, host: str, ports: Iterable[int]) -> int:
        """Accept servers at the first of the ports that is free; return it.

        Raises:
            OSError: no port can be bound.
        """
        assert self.client is not None
        server = ReplicaServer(self.client, self._access, self._contents.hex(), self._release)
        port = _first_free(server, host, ports)
        self.server = server
        return port

    @property
    def load(self) -> Load:
        """The present work of the engines."""
        if self.client is None or self.server is None:
            return Load(0, 0, 0, 0, 0.0)
        stats = self.client.stats
        return Load(
            requests=self.client.in_flight,
            running=stats.running,
            waiting=stats.waiting,
            seats=sum(replica.seats for replica in self.client.fleet.replicas),
            first_token_seconds=self.client.backlog + self.server.prefill_seconds,
        )

    async def leave(self) -> None:
        """Have the servers continue their requests elsewhere; wait for those that cannot be."""
        if self.server is not None:
            await self.server.leave(self._settings.drain_seconds)
            await self.server.close()

    async def close(self) -> None:
        """End the engines."""
        if self.client is not None:
            await self.client.close()

    def _blocks_changed(self, blocks: Blocks) -> None:
        if self.server is not None:
            self.server.blocks_changed(blocks)


def _first_free(server: ReplicaServer, host: str, ports: Iterable[int]) -> int:
    taken: OSError | None = None
    for port in ports:
        try:
            return server.listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            taken = error
    raise taken or OSError(errno.EINVAL, "there is no port to bind")
