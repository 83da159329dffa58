"""Ray Serve's applications: of a release, of the gateways, and of a whole cluster."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from galley.cluster.config import ClusterConfig, Release, read_config
from galley.cluster.on_ray.gateway import Gateway, gateway_spec
from galley.cluster.on_ray.plan import DEPLOYMENT, Plan, planned_model, releases_of
from galley.cluster.on_ray.replica import ModelReplica, replica_spec

GATEWAY: Final = "Gateway"
"""Name of the deployment of gateways."""

_STATS_SECONDS: Final = 1.0
"""Seconds between two figures of a replica."""

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


def cluster_app(given: object) -> Application:
    """Return one application with everything, for ``serve run`` and ``RayService``."""
    config = read_config(given)
    names = {release.name: f"{model}-{release.name}" for model, release in releases_of(config)}
    bound = [
        _replica(
            replica_spec(config, model, release),
            names[release.name],
            release_options(config, release),
        )
        for model, release in releases_of(config)
    ]
    apps = {name: ("", deployment) for name, deployment in names.items()}
    models = {n: planned_model(model, apps) for n, model in config.models.items()}
    options = gateway_options(config, Plan(models=models))
    return _gateway(gateway_spec(config), options, bound)


def release_app(args: dict[str, Any]) -> Application:
    """Return the application of a release; ``args``: ``{"spec": ...}``, see :func:`replica_spec`."""
    return _replica(args["spec"], DEPLOYMENT, {})


def gateway_app(args: dict[str, Any]) -> Application:
    """Return the application of gateways; ``args``: ``{"spec": ...}``, see :func:`gateway_spec`."""
    return _gateway(args["spec"], {}, [])


def release_options(config: ClusterConfig, release: Release) -> dict[str, Any]:
    """Return the options of a release's deployment in Ray Serve, as its configuration files have them."""
    return {"ray_actor_options": _actor(release), **_lifecycle(config), **_number(release)}


def gateway_options(config: ClusterConfig, plan: Plan) -> dict[str, Any]:
    """Return the options of the deployment of gateways, with what they are told."""
    first, last = config.gateways.ports
    return {
        "num_replicas": config.gateways.replicas,
        "max_replicas_per_node": min(_MOST_ON_NODE, last - first + 1),
        "ray_actor_options": {"num_cpus": config.gateways.cpus},
        "user_config": msgspec.to_builtins(plan),
        **_lifecycle(config),
    }


def _replica(spec: dict[str, Any], name: str, options: dict[str, Any]) -> Application:
    deployment = serve.deployment(name=name, request_router_config=_router(), **options)
    bound: Application = deployment(ModelReplica).bind(spec)
    return bound


def _gateway(
    spec: dict[str, Any], options: dict[str, Any], releases: Sequence[Application]
) -> Application:
    deployment = serve.deployment(name=GATEWAY, request_router_config=_router(), **options)
    bound: Application = deployment(Gateway).bind(spec, *releases)
    return bound


def _lifecycle(config: ClusterConfig) -> dict[str, Any]:
    return {
        "max_ongoing_requests": _MOST_CALLS,
        "graceful_shutdown_timeout_s": config.rollout.drain_seconds + _DRAIN_ALLOWANCE,
        "health_check_period_s": _HEALTH_SECONDS,
        "health_check_timeout_s": _HEALTH_TIMEOUT,
    }


def _router() -> RequestRouterConfig:
    return RequestRouterConfig(
        request_router_class="galley.cluster.on_ray.router.WaitRouter",
        request_routing_stats_period_s=_STATS_SECONDS,
    )


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
