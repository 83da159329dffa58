"""The figures of gateways and replicas, as commands read them from Ray Serve."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ray import serve

from galley.cluster.config import ClusterConfig
from galley.cluster.on_ray import directory
from galley.cluster.on_ray.plan import DEPLOYMENT, GATEWAY, PlannedRelease, plan_of

if TYPE_CHECKING:
    from galley.cluster.on_ray.deploy import Client

_FIRST_SECONDS: Final = 5.0
"""How long Ray may take to send a router the list of replicas."""

_handles: dict[tuple[str, str], Any] = {}


def replicas(app: str, deployment: str) -> Mapping[str, Mapping[str, Any]]:
    """Return what the replicas of a deployment last recorded; empty if it has none, or is not there."""
    key = (app, deployment)
    if key not in _handles:
        try:
            # The first call of options creates the handle's router; Ray sends it the list of replicas.
            _handles[key] = serve.get_deployment_handle(deployment, app).options(method_name="wake")
        except Exception:
            return {}
        deadline = time.monotonic() + _FIRST_SECONDS
        while not any(directory.replicas_of(*key).values()) and time.monotonic() < deadline:
            time.sleep(0.1)
    return directory.replicas_of(*key)


def gateways(name: str) -> list[Mapping[str, Any]]:
    """Return what the gateways of a cluster last recorded."""
    return [one for one in replicas(name, GATEWAY).values() if one.get("url")]


def in_flight(name: str, releases: Iterable[PlannedRelease]) -> int:
    """Return how many sequences releases have, at replicas or waiting for one."""
    there = gateways(name)
    total = 0
    for release in releases:
        at_replicas = sum(
            one.get("requests", 0) for one in replicas(release.app, release.deployment).values()
        )
        at_gateways = sum(
            model.get(release.name, {}).get("requests", 0)
            for gateway in there
            for model in gateway["figures"].values()
        )
        total += max(at_replicas, at_gateways)
    return total


@dataclass(frozen=True)
class ClusterStatus:
    """The figures that ``galley cluster status`` shows.

    Attributes:
        replicas: rows of model, release, role, share, replica, state, requests and predicted time to the
            first token; a release without replicas has one row.
        gateways: where gateways listen.
    """

    replicas: list[tuple[str, ...]]
    gateways: list[str]


def status_of(client: "Client", config: ClusterConfig) -> ClusterStatus:
    """Return the state of a cluster, from Ray Serve and from what its processes record.

    Args:
        client: Ray Serve.
        config: the cluster.
    """
    details = client.applications()
    rows: list[tuple[str, ...]] = []
    for model, planned in plan_of(details.get(config.name)).models.items():
        for release in planned.releases:
            found = details.get(release.app, {}).get("deployments", {}).get(DEPLOYMENT, {})
            known = replicas(release.app, release.deployment)
            about = (model, release.name, release.alias or "old", f"{release.share:g} %")
            states = found.get("replicas", [])
            rows += [(*about, *_row(one, known)) for one in states]
            if not states:
                rows.append((*about, "-", "asleep" if release.sleeps else "none", "-", "-"))
    return ClusterStatus(rows, sorted(str(one["url"]) for one in gateways(config.name)))


def _row(replica: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    name, state = str(replica["replica_id"]), str(replica["state"].value)
    stats = known.get(name, {})
    if not stats:
        return name, state, "-", "-"
    wait = f"{1000 * stats['first_token_seconds']:.0f} ms"
    return str(stats["address"]), state, str(stats["requests"]), wait
