"""The options of deployments in Ray Serve, in the form of its configuration files; imports no Ray."""

from typing import Any, Final

import msgspec

from galley.cluster.config import ClusterConfig, Release
from galley.cluster.on_ray.plan import Plan

_LOOK_BACK_SECONDS: Final = 15.0
"""Seconds of figures that Ray keeps; the policy reads the latest."""

_HEALTH_SECONDS: Final = 2.0
_HEALTH_TIMEOUT: Final = 10.0

_MOST_CALLS: Final = 1000
"""Calls by handle at the same time; requests do not come this way."""

_MOST_ON_NODE: Final = 100
"""The highest limit that Ray accepts for the gateways on a node."""

_DRAIN_ALLOWANCE: Final = 30.0
"""Seconds that a replica or a gateway has to end in addition to those of its requests."""


def release_options(config: ClusterConfig, release: Release) -> dict[str, Any]:
    """Return the options of a release's deployment in Ray Serve, as its configuration files have them."""
    return {"ray_actor_options": _actor(release), **_lifecycle(config), **_number(release)}


def gateway_options(config: ClusterConfig, plan: Plan) -> dict[str, Any]:
    """Return the options of the deployment of gateways, with their plan."""
    first, last = config.gateways.ports
    return {
        "num_replicas": config.gateways.replicas,
        "max_replicas_per_node": min(_MOST_ON_NODE, last - first + 1),
        "ray_actor_options": {"num_cpus": config.gateways.cpus},
        "user_config": msgspec.to_builtins(plan),
        **_lifecycle(config),
    }


def _lifecycle(config: ClusterConfig) -> dict[str, Any]:
    return {
        "max_ongoing_requests": _MOST_CALLS,
        "graceful_shutdown_timeout_s": config.rollout.drain_seconds + _DRAIN_ALLOWANCE,
        "health_check_period_s": _HEALTH_SECONDS,
        "health_check_timeout_s": _HEALTH_TIMEOUT,
    }


def _actor(release: Release) -> dict[str, Any]:
    wanted = release.resources
    options: dict[str, Any] = {"num_cpus": wanted.cpus}
    if wanted.gpus:
        options["num_gpus"] = wanted.gpus
    if wanted.memory_bytes:
        options["memory"] = wanted.memory_bytes
    if wanted.custom:
        options["resources"] = dict(wanted.custom)
    return options


def _number(release: Release) -> dict[str, Any]:
    scale, slo = release.scale, release.slo
    if isinstance(release.replicas, int):
        return {"num_replicas": release.replicas}
    policy: dict[str, Any] = {
        "policy_function": "galley.cluster.on_ray.scaling:ByFirstToken",
        "policy_kwargs": {
            "first_token_seconds": slo.ttft_ms / 1000,
            "load": slo.load,
            "down_seconds": scale.down_seconds,
        },
    }
    scaling = {
        "min_replicas": scale.min,
        "max_replicas": scale.max,
        "upscale_delay_s": scale.up_seconds,
        "downscale_delay_s": 0.0,  # the policy has it
        "downscale_to_zero_delay_s": scale.zero_seconds,
        "look_back_period_s": _LOOK_BACK_SECONDS,
        "policy": policy,
    }
    return {"autoscaling_config": scaling}
