"""The deployment of a release: each replica supervises an engine process and serves gateways."""

import logging
import time
from typing import Any, Final

import msgspec
import ray

from galley.cluster.host import ReplicaHost
from galley.cluster.on_ray.specs import ReplicaSpec
from galley.links.access import read_access
from galley.observe import logs
from galley.settings.config import LOOPBACK_HOSTS, Settings
from galley.settings.values import address_text

log = logging.getLogger("galley.cluster")

_DIGITS: Final = 2
"""Digits of figures: each change is sent to all routers."""


class ModelReplica:
    """A replica of a release, for Ray Serve."""

    async def __init__(self, spec: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        """Load the model and accept gateways; see :class:`ReplicaSpec`.

        Raises:
            GalleyError: the model or the settings cannot be used.
            OSError: none of the ports is free.
        """
        self._spec = msgspec.convert(spec, ReplicaSpec)
        logs.start("text", "warning")
        logging.getLogger("galley").setLevel(logging.INFO)
        settings = Settings(**_tuples(self._spec.settings))
        host = self._spec.host or ray.util.get_node_ip_address()
        access = read_access(settings)
        if host not in LOOPBACK_HOSTS and access.as_replica is None:
            log.warning(
                "%s is reachable from other machines without encryption: set ca, cert and key of network, "
                "or keep the network private",
                host,
            )
        self._host = ReplicaHost(settings, access, self._spec.release)
        self._leaving = False
        self._start_seconds = 0.0
        began = time.monotonic()
        try:
            await self._host.start()
            first, last = self._spec.ports
            port = await self._host.listen(host, range(first, last + 1))
        except BaseException:
            await self._host.close()
            raise
        self._start_seconds = time.monotonic() - began
        self._address = address_text(host, port)
        log.info("%s %s serves gateways at %s", self._spec.model, self._spec.release, self._address)

    def record_routing_stats(self) -> dict[str, Any]:
        """Return where the replica is and what it has to do, for routers and gateways."""
        load = self._host.load
        return {
            "address": "" if self._leaving else self._address,
            "release": self._spec.release,
            "requests": load.requests,
            "first_token_seconds": round(load.first_token_seconds, _DIGITS),
        }

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the figures of :class:`galley.cluster.on_ray.scaling.ByFirstToken`."""
        load = self._host.load
        return {
            "running": load.running,
            "waiting": load.waiting,
            "seats": load.seats,
            "first_token_seconds": load.first_token_seconds,
            "start_seconds": self._start_seconds,
        }

    async def check_health(self) -> None:
        """Raise EngineFailed if the engine cannot be started any more."""
        client = self._host.client
        assert client is not None
        if client.fleet.error is not None:
            raise client.fleet.error

    async def wake(self) -> None:
        """Do nothing: a call that waits has Ray Serve start a replica."""

    async def __del__(self) -> None:
        """Have the gateways continue the requests elsewhere, and end; Ray Serve calls it once."""
        self._leaving = True
        await self._host.leave()
        await self._host.close()


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
