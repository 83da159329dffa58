"""What ``galley cluster deploy`` gives Ray Serve; ``test_on_ray`` deploys."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from galley.cluster.config import read_config
from galley.cluster.on_ray import deploy
from galley.cluster.on_ray.deploy import Deployment, remove
from galley.cluster.on_ray.plan import PlannedRelease, plan_of
from galley.errors import GalleyError


class RecordingClient:
    """Has what was deployed, and fails to start what is new, while somebody else deploys something."""

    def __init__(self) -> None:
        self.apps: dict[str, dict[str, Any]] = {}

    def deploy(self, applications: Sequence[dict[str, Any]]) -> None:
        self.apps = {one["name"]: one for one in applications}

    def in_flight(self, name: str, releases: Iterable[PlannedRelease]) -> int:
        return 0

    def applications(self) -> dict[str, dict[str, Any]]:
        found = {
            name: {"status": "RUNNING", "deployed_app_config": app}
            for name, app in self.apps.items()
        }
        self.apps["galley-dev"] = {
            "name": "galley-dev",
            "import_path": "their:app",
            "route_prefix": None,
        }
        return found


def test_a_deployment_leaves_the_applications_of_others_as_they_are() -> None:
    config = read_config(
        {
            "network": {"token_file": "token"},
            "models": {"m": {"model": "a"}},
            "gateways": {"ports": [8000, 8003]},
        }
    )
    client = RecordingClient()
    client.apps["theirs"] = {"name": "theirs", "import_path": "their:app", "route_prefix": None}
    deployment = Deployment(client, config, lambda line: None)
    deployment.run()
    [release] = (name for name in client.apps if name.startswith("galley."))
    assert client.apps.keys() == {"galley", release, "theirs", "galley-dev"}
    [gateway] = client.apps["galley"]["deployments"]
    assert gateway["max_replicas_per_node"] == 4
    remove(client, config)
    assert client.apps.keys() == {"theirs", "galley-dev"}


def test_a_release_that_does_not_start_is_removed_alone() -> None:
    class Failing(RecordingClient):
        def applications(self) -> dict[str, dict[str, Any]]:
            details = super().applications()
            for name, app in details.items():
                if name.startswith("galley."):
                    app |= {"status": "DEPLOY_FAILED", "message": "no room"}
            return details

    config = read_config({"network": {"token_file": "token"}, "models": {"m": {"model": "a"}}})
    client = Failing()
    deployment = Deployment(client, config, lambda line: None)
    with pytest.raises(GalleyError, match="no room"):
        deployment.run()
    assert client.apps.keys() == {"galley-dev"}


def test_gateways_that_are_replaced_have_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Updating(RecordingClient):
        def applications(self) -> dict[str, dict[str, Any]]:
            details = super().applications()
            replica = {"state": "RUNNING"}
            for app in details.values():
                app |= {"status": "DEPLOYING", "message": "port taken"}
                app["deployments"] = {"any": {"replicas": [replica]}}
            return details

    monkeypatch.setattr(deploy, "_POLL_SECONDS", 0.01)
    given = {"network": {"token_file": "token"}, "models": {"m": {"model": "a"}}}
    given["rollout"] = {"ready_seconds": 0.1, "drain_seconds": 0.1}
    client = RecordingClient()
    Deployment(client, read_config(given), lambda line: None).run()
    updating = Updating()
    updating.apps = before = dict(client.apps)
    # A replica is enough of what is there already.
    Deployment(updating, read_config(given), lambda line: None).run()
    changed = read_config({**given, "gateways": {"ports": [9000, 9000]}})
    with pytest.raises(GalleyError, match="port taken"):
        Deployment(updating, changed, lambda line: None).run()
    assert updating.apps["galley"]["args"] == before["galley"]["args"]


def test_two_names_of_the_same_release_have_replicas_of_their_own() -> None:
    models = {"m": {"model": "a"}, "n": {"model": "a"}}
    client = RecordingClient()
    config = read_config({"network": {"token_file": "token"}, "models": models})
    Deployment(client, config, lambda line: None).run()
    plan = plan_of({"deployed_app_config": client.apps["galley"]})
    apps = {name: [one.app for one in model.releases] for name, model in plan.models.items()}
    [release] = {one.name for model in plan.models.values() for one in model.releases}
    assert apps == {"m": [f"galley.m.{release}"], "n": [f"galley.n.{release}"]}
    assert client.apps.keys() == {"galley", "galley-dev", *apps["m"], *apps["n"]}


def test_another_gateway_leaves_those_that_there_are_as_they_are() -> None:
    given = {"network": {"token_file": "token"}, "models": {"m": {"model": "a"}}}
    client, found = RecordingClient(), []
    for replicas in (1, 3):
        config = read_config({**given, "gateways": {"replicas": replicas}})
        Deployment(client, config, lambda line: None).run()
        found.append(client.apps["galley"])
    assert found[0]["args"] == found[1]["args"]
    assert [one["deployments"][0]["num_replicas"] for one in found] == [1, 3]
