"""The plan that gateways follow: the models, their releases, and where Ray Serve has the replicas."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from galley.cluster.config import ClusterConfig, Model, Release, underscored

DEPLOYMENT: Final = "Replica"
"""Name of a release's deployment in an application of its own."""

GATEWAY: Final = "Gateway"
"""Name of the deployment of gateways."""


class PlannedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """One release as gateways know it.

    Attributes:
        name: its name.
        share: in percent; 0: it completes what it has begun.
        sleeps: whether it may have no replicas.
        alias: "stable", "canary" or empty.
        app: the application in Ray Serve; empty: that of the gateway itself.
        deployment: the deployment there.
    """

    name: str
    share: float
    sleeps: bool
    alias: str
    app: str
    deployment: str


class PlannedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model as gateways know it.

    Attributes:
        settings: its settings as in ``galley.yaml``: those of its stable release.
        releases: those that have replicas.
    """

    settings: dict[str, Any]
    releases: list[PlannedRelease]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of all gateways; ``models``: by name."""

    models: dict[str, PlannedModel]


def planned_model(
    name: str, model: Model, place: Callable[[str, Release], tuple[str, str]]
) -> PlannedModel:
    """Return a model whose releases are those of the configuration.

    Args:
        name: the model's name in the API.
        model: the model.
        place: returns the application and the deployment of a release of a model.
    """
    canary = model.canary
    share = canary.share if canary is not None else 0.0
    pairs: list[tuple[Release, float, str]] = [(model, 100.0 - share, "stable")]
    if canary is not None:
        pairs.append((canary, share, "canary"))
    releases = [
        PlannedRelease(
            name=release.name,
            share=part,
            sleeps=release.scale.min == 0,
            alias=alias,
            app=app,
            deployment=deployment,
        )
        for release, part, alias in pairs
        for app, deployment in [place(name, release)]
    ]
    return PlannedModel(settings=served_settings(model), releases=releases)


def served_settings(release: Release) -> dict[str, Any]:
    """Return the settings with which gateways serve a model, as ``galley.yaml`` has them."""
    revision = {"revision": release.revision} if release.revision else {}
    return {**underscored(release.settings), "model": release.model, **revision}


def releases_of(config: ClusterConfig) -> list[tuple[str, Release]]:
    """Return each release with its model's name."""
    return [
        (name, release)
        for name, model in config.models.items()
        for release in (model, model.canary)
        if release is not None
    ]


def plan_of(app: dict[str, Any] | None) -> Plan:
    """Return the plan of the gateways of an application, from its details; empty without one."""
    for deployment in ((app or {}).get("deployed_app_config") or {}).get("deployments", ()):
        if deployment["name"] == GATEWAY and deployment.get("user_config"):
            return msgspec.convert(deployment["user_config"], Plan)
    return Plan(models={})
