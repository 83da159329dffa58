"""The arguments of replicas and gateways, as Ray passes them on; imports no Ray."""

from typing import Any

import msgspec

from galley.cluster.config import ClusterConfig, Release, underscored


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a replica.

    Attributes:
        model: the model's name in the API.
        release: the name of the release.
        settings: those of ``galley replica``, by field.
        host: the address to bind; empty: the node's address in the cluster.
        ports: first and last port.
    """

    model: str
    release: str
    settings: dict[str, Any]
    host: str
    ports: tuple[int, int]


def replica_spec(config: ClusterConfig, model: str, release: Release) -> dict[str, Any]:
    """Return what the replicas of a release are started with, as Ray passes it on."""
    gateway = config.gateway_settings()
    shared = {
        "drain_seconds": config.rollout.drain_seconds,
        "stall_seconds": gateway.stall_seconds,
        "step_timeout": gateway.step_timeout,
    }
    spec = ReplicaSpec(
        model=model,
        release=release.name,
        settings=config.replica_settings(release) | shared,
        host=config.network.host,
        ports=config.network.ports,
    )
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found


class GatewaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a gateway; if they change, gateways are restarted.

    Attributes:
        host: the address to bind.
        ports: first and last port.
        settings: other settings of ``galley serve``, those of the network among them.
        drain_seconds: how long requests have to be completed.
    """

    host: str
    ports: tuple[int, int]
    settings: dict[str, Any]
    drain_seconds: float


def gateway_spec(config: ClusterConfig) -> dict[str, Any]:
    """Return what gateways are started with, as Ray passes it on."""
    spec = GatewaySpec(
        host=config.gateways.host,
        ports=config.gateways.ports,
        settings={**underscored(config.gateways.settings), **config.network.settings},
        drain_seconds=config.rollout.drain_seconds,
    )
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found
