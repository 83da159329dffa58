"""``galley cluster deploy``: applications of releases and gateways in Ray Serve, and how updates roll.

An update adds the applications of new releases, waits until they have replicas, moves the shares of new
requests, waits until the old releases have completed theirs, and removes them. What to do next follows from
what is deployed, so a deployment that was interrupted is completed by the next one.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from galley.cluster.config import ClusterConfig, Release
from galley.cluster.on_ray.options import gateway_options, release_options
from galley.cluster.on_ray.plan import (
    DEPLOYMENT,
    GATEWAY,
    Plan,
    PlannedModel,
    PlannedRelease,
    plan_of,
    planned_model,
    releases_of,
)
from galley.cluster.on_ray.specs import gateway_spec, replica_spec
from galley.errors import GalleyError

_BUILD: Final = "galley.cluster.on_ray.build"
_POLL_SECONDS: Final = 0.5
_QUIET_SECONDS: Final = 3.0
"""How long an old release must have had no requests: figures are up to a second old."""

Say = Callable[[str], None]


class Client(Protocol):
    """Ray Serve, as deployments use it."""

    def applications(self) -> dict[str, dict[str, Any]]:
        """Return the details of each application by name."""

    def deploy(self, applications: Sequence[dict[str, Any]]) -> None:
        """Have these applications, in the form of Ray Serve's configuration files, and no others."""

    def in_flight(self, name: str, releases: Iterable[PlannedRelease]) -> int:
        """Return how many sequences releases of a cluster have."""


class Deployment:
    """One deployment of a configuration."""

    def __init__(self, client: Client, config: ClusterConfig, say: Say) -> None:
        """Create it.

        Args:
            client: Ray Serve.
            config: what is to be deployed.
            say: called with a line about each step.
        """
        self._client = client
        self._config = config
        self._say = say
        details = client.applications()
        self._before = _deployed(details)
        self._wanted = {
            _app(config, model, release.name): _release_app(config, model, release)
            for model, release in releases_of(config)
        }
        self._old_plan = plan_of(details.get(config.name))
        before, wanted = self._before.get(config.name, {}), {"spec": gateway_spec(config)}
        self._replaces_gateways = _as_json(before.get("args")) != _as_json(wanted)

    def run(self) -> None:
        """Deploy, and return when old releases have gone.

        Raises:
            GalleyError: a new release does not start; then everything is as before.
        """
        new = self._wanted.keys() - self._before.keys()
        old = self._old_releases()
        apps = {**{name: self._before[name] for name in old}, **self._wanted}
        for name in sorted(new):
            self._say(f"starting {name}")
        self._apply(apps, self._plan_while_starting(new))
        try:
            self._until_started(new)
        except GalleyError:
            self._restore()
            raise
        self._apply(apps, self._plan(old))
        if not old:
            return
        self._say(f"completing the requests of {', '.join(sorted(old))}")
        self._until_drained(old)
        self._apply(self._wanted, self._plan({}))
        self._say(f"removed {', '.join(sorted(old))}")

    def _old_releases(self) -> dict[str, PlannedRelease]:
        """Return the releases that are deployed, but not wanted, by application."""
        return {
            one.app: one
            for model in self._old_plan.models.values()
            for one in model.releases
            if one.app not in self._wanted and one.app in self._before
        }

    def _plan(self, old: Mapping[str, PlannedRelease]) -> Plan:
        """Return the wanted plan, in which old releases complete what they have begun."""
        models = {}
        for name, model in self._config.models.items():
            planned = planned_model(name, model, self._place)
            models[name] = _with(planned, _retired(self._old_plan.models.get(name), old))
        return Plan(models=models)

    def _place(self, model: str, release: Release) -> tuple[str, str]:
        return _app(self._config, model, release.name), DEPLOYMENT

    def _plan_while_starting(self, new: set[str]) -> Plan:
        """Return the plan in which models with new releases keep their requests where they are."""
        models = {}
        for name, model in self._plan({}).models.items():
            before = self._old_plan.models.get(name)
            if before is None or not {one.app for one in model.releases} & new:
                models[name] = _with(model, _retired(before, self._old_releases()))
                continue
            there = {one.name for one in before.releases}
            added = [
                msgspec.structs.replace(one, share=0.0, alias="")
                for one in model.releases
                if one.name not in there
            ]
            models[name] = _with(before, added)
        return Plan(models=models)

    def _apply(self, releases: Mapping[str, dict[str, Any]], plan: Plan) -> None:
        gateways = {
            "name": self._config.name,
            "import_path": f"{_BUILD}:gateway_app",
            "route_prefix": None,
            "args": {"spec": gateway_spec(self._config)},
            "deployments": [{"name": GATEWAY, **gateway_options(self._config, plan)}],
        }
        _deploy(self._client, self._config, [gateways, *releases.values()])

    def _restore(self) -> None:
        """Deploy what was deployed before."""
        own = [app for name, app in self._before.items() if _is_of(self._config, name)]
        _deploy(self._client, self._config, own)

    def _until_started(self, names: set[str]) -> None:
        """Wait until applications have a replica, or need none, and there is a gateway.

        If gateways are replaced, wait for all: those that there are say nothing of the new ones.
        """
        seconds = self._config.rollout.ready_seconds
        deadline = time.monotonic() + seconds
        waiting = {*names, self._config.name}
        while waiting:
            details = self._client.applications()
            for name in sorted(waiting):
                found = details.get(name, {})
                if found.get("status") == "DEPLOY_FAILED":
                    raise GalleyError(f"{name} cannot be started: {_reason(found)}")
                all_needed = name == self._config.name and self._replaces_gateways
                if found.get("status") == "RUNNING" or (not all_needed and _has_replica(found)):
                    waiting.discard(name)
            if waiting and time.monotonic() > deadline:
                reasons = "; ".join(_reason(details.get(one, {})) for one in sorted(waiting))
                raise GalleyError(
                    f"{', '.join(sorted(waiting))} did not start within {seconds:.0f} seconds: {reasons}"
                )
            time.sleep(_POLL_SECONDS * bool(waiting))

    def _until_drained(self, old: Mapping[str, PlannedRelease]) -> None:
        """Wait until old releases have no requests, or the time for that is over."""
        deadline = time.monotonic() + self._config.rollout.drain_seconds
        quiet_since = None
        while time.monotonic() < deadline:
            if self._client.in_flight(self._config.name, old.values()):
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _QUIET_SECONDS:
                return
            time.sleep(_POLL_SECONDS)
        self._say("the time is over; what is unfinished has as long again to be completed")


def remove(client: Client, config: ClusterConfig) -> list[str]:
    """Remove the applications of a cluster, which complete their requests; return their names."""
    gone = [name for name in _deployed(client.applications()) if _is_of(config, name)]
    _deploy(client, config, [])
    deadline = time.monotonic() + 2 * config.rollout.drain_seconds
    while time.monotonic() < deadline:
        left = client.applications()
        if not any(name in left for name in gone):
            break
        time.sleep(_POLL_SECONDS)
    return gone


def _deploy(client: Client, config: ClusterConfig, own: Sequence[dict[str, Any]]) -> None:
    """Have these applications of a cluster, and those of others as they are by now."""
    others = [
        app for name, app in _deployed(client.applications()).items() if not _is_of(config, name)
    ]
    client.deploy([*others, *own])


def _is_of(config: ClusterConfig, name: str) -> bool:
    return name == config.name or name.startswith(f"{config.name}.")


def _as_json(args: object) -> bytes:
    return msgspec.json.encode(args, order="deterministic")


def _deployed(details: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configuration of each application that was deployed by one."""
    return {
        name: found["deployed_app_config"]
        for name, found in details.items()
        if found.get("deployed_app_config") and found.get("status") != "DELETING"
    }


def _app(config: ClusterConfig, model: str, release: str) -> str:
    return f"{config.name}.{model}.{release}"


def _release_app(config: ClusterConfig, model: str, release: Release) -> dict[str, Any]:
    return {
        "name": _app(config, model, release.name),
        "import_path": f"{_BUILD}:release_app",
        "route_prefix": None,
        "args": {"spec": replica_spec(config, model, release)},
        "deployments": [{"name": DEPLOYMENT, **release_options(config, release)}],
    }


def _retired(
    before: PlannedModel | None, old: Mapping[str, PlannedRelease]
) -> list[PlannedRelease]:
    """Return a model's old releases, which get no new requests."""
    releases = () if before is None else before.releases
    return [msgspec.structs.replace(one, share=0.0, alias="") for one in releases if one.app in old]


def _with(model: PlannedModel, more: list[PlannedRelease]) -> PlannedModel:
    return msgspec.structs.replace(model, releases=[*model.releases, *more])


def _has_replica(app: dict[str, Any]) -> bool:
    deployments = app.get("deployments", {}).values()
    return any(one["state"] == "RUNNING" for each in deployments for one in each["replicas"])


def _reason(app: dict[str, Any]) -> str:
    messages = [app.get("message", "")]
    messages += [one.get("message", "") for one in app.get("deployments", {}).values()]
    return "; ".join(filter(None, messages)) or "Ray Serve gives no reason"
