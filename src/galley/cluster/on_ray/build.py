"""Ray Serve's applications: of a release, of the gateways, and of a whole cluster."""

from collections.abc import Sequence
from typing import Any, Final

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from galley.cluster.config import Release, read_config
from galley.cluster.on_ray.gateway import Gateway
from galley.cluster.on_ray.options import gateway_options, release_options
from galley.cluster.on_ray.plan import DEPLOYMENT, GATEWAY, Plan, planned_model, releases_of
from galley.cluster.on_ray.replica import ModelReplica
from galley.cluster.on_ray.specs import gateway_spec, replica_spec

_STATS_SECONDS: Final = 1.0
"""Seconds between two figures of a replica."""


def cluster_app(given: object) -> Application:
    """Return one application with everything, for ``serve run`` and ``RayService``."""
    config = read_config(given)
    bound = [
        _replica(
            replica_spec(config, model, release),
            _place(model, release)[1],
            release_options(config, release),
        )
        for model, release in releases_of(config)
    ]
    models = {name: planned_model(name, model, _place) for name, model in config.models.items()}
    options = gateway_options(config, Plan(models=models))
    return _gateway(gateway_spec(config), options, bound)


def release_app(args: dict[str, Any]) -> Application:
    """Return the application of a release; ``args``: ``{"spec": ...}``, see :func:`replica_spec`."""
    return _replica(args["spec"], DEPLOYMENT, {})


def gateway_app(args: dict[str, Any]) -> Application:
    """Return the application of gateways; ``args``: ``{"spec": ...}``, see :func:`gateway_spec`."""
    return _gateway(args["spec"], {}, [])


def _place(model: str, release: Release) -> tuple[str, str]:
    """Return the application, which is the gateways' own, and the deployment of a release."""
    return "", f"{model}-{release.name}"


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


def _router() -> RequestRouterConfig:
    return RequestRouterConfig(
        request_router_class="galley.cluster.on_ray.router.WaitRouter",
        request_routing_stats_period_s=_STATS_SECONDS,
    )
