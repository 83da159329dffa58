"""The process of ``galley replica``: start the engines, serve, and leave on a signal."""

import asyncio
import logging
import signal
import sys
from typing import Final

from galley.cluster.server import ReplicaServer
from galley.cluster.share import fleet_of, share_of_machine
from galley.errors import GalleyError, SettingsError
from galley.formats.model_files import files_digest
from galley.formats.source import resolve_model
from galley.links.access import Access, read_access
from galley.observe import logs
from galley.observe.logs import say
from galley.service.client import EngineClient
from galley.service.frames import Blocks
from galley.service.spawn import Spawner
from galley.service.watchdog import Watchdog
from galley.settings.config import LOOPBACK_HOSTS, Settings

log = logging.getLogger("galley.cluster")

_MOST_QUEUED: Final = 1_000_000
"""Servers admit requests; here, none is refused."""


def run_replica(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; blocks. Return the exit code.

    Raises:
        SettingsError: the settings cannot be used.
    """
    logs.start(settings.log_format, settings.log_level)
    if not settings.replicas or settings.replica:
        raise SettingsError(
            "galley replica runs engines itself: leave out replica, and replicas of 0"
        )
    if settings.kv_events:
        raise SettingsError(
            "kv_events is a setting of galley serve; leave it out of galley replica"
        )
    if settings.prefill_replica:
        raise SettingsError(
            "prefill_replica is a setting of galley serve; leave it out of galley replica"
        )
    access = read_access(settings)
    if settings.host not in LOOPBACK_HOSTS and access.as_replica is None:
        log.warning(
            "%s is reachable from other machines without encryption: set cluster_ca, cluster_cert and "
            "cluster_key, or keep the network private",
            settings.host,
        )
    return asyncio.run(_run(settings, access))


async def _run(settings: Settings, access: Access) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    folder = await asyncio.to_thread(resolve_model, settings.model, revision=settings.revision)
    contents = asyncio.create_task(asyncio.to_thread(files_digest, folder))
    servers: list[ReplicaServer] = []

    def blocks_changed(blocks: Blocks) -> None:
        for server in servers:
            server.blocks_changed(blocks)

    spawner = Spawner(settings)
    client = EngineClient(
        share_of_machine(settings, settings.replicas),
        str(folder),
        max_queue=_MOST_QUEUED,
        begin=lambda: spawner.spawn(settings),
        watchdog=lambda: Watchdog(settings.stall_seconds, settings.step_timeout),
        on_blocks=blocks_changed,
        **fleet_of(settings),
    )
    client.launch()
    try:
        starting = asyncio.create_task(client.ready())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        starting.result()
        server = ReplicaServer(client, access, (await contents).hex())
        servers.append(server)
        port = await server.listen(settings.host, settings.port)
        say(f"{client.info.name} is ready for servers at {settings.host}:{port}")
        await stopping
        await server.leave(settings.drain_seconds)
        await server.close()
    except OSError as error:
        say(
            f"galley: cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            sys.stderr,
        )
        return 1
    except GalleyError as error:
        say(f"galley: cannot start: {error}", sys.stderr)
        return 1
    finally:
        await client.close()
    return 0
