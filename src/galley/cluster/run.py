"""The process of ``galley replica``: start the engines, serve, and leave on a signal."""

import asyncio
import logging
import signal
import sys

from galley.cluster.host import ReplicaHost
from galley.errors import GalleyError, SettingsError
from galley.links.access import UNENCRYPTED, Access, read_access
from galley.observe import logs
from galley.observe.logs import say
from galley.settings.config import LOOPBACK_HOSTS, Settings
from galley.settings.values import address_text

log = logging.getLogger("galley.cluster")


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
        log.warning(UNENCRYPTED, settings.host)
    plan = settings.transfer_plan
    if settings.host not in LOOPBACK_HOSTS and plan and plan.offers and plan.is_local:
        log.warning(
            "role is %s, but kv_transfer is %s: only engines on this machine can fetch blocks; set "
            "kv_transfer to an address by which other machines reach this one",
            settings.role,
            settings.kv_transfer,
        )
    return asyncio.run(_run(settings, access))


async def _run(settings: Settings, access: Access) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    host = ReplicaHost(settings, access)
    try:
        starting = asyncio.create_task(host.start())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        starting.result()
        port = await host.listen(settings.host, [settings.port])
        assert host.client is not None
        address = address_text(settings.host, port)
        say(f"{host.client.info.name} is ready for servers at {address}")
        await stopping
        await host.leave()
    except OSError as error:
        where = address_text(settings.host, settings.port)
        say(f"galley: cannot listen on {where}: {error.strerror or error}", sys.stderr)
        return 1
    except GalleyError as error:
        say(f"galley: cannot start: {error}", sys.stderr)
        return 1
    finally:
        await host.close()
    return 0
