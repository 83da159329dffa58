"""What ``galley cluster deploy`` gives Ray Serve; ``test_on_ray`` deploys."""

from pathlib import Path
from typing import Any

import pytest

from galley.cluster.config import read_config
from galley.errors import GalleyError

pytest.importorskip("ray", reason="extra ray")


class RecordingClient:
    """Has what was deployed, and fails to start what is new, while somebody else deploys something."""

    def __init__(self) -> None:
        self.apps: dict[str, dict[str, Any]] = {}

    def deploy_apps(self, schema: Any) -> None:
        self.apps = {
            one["name"]: one for one in schema.model_dump(exclude_unset=True)["applications"]
        }

    def get_serve_details(self) -> dict[str, Any]:
        found = {
            name: {"status": "RUNNING", "deployed_app_config": app}
            for name, app in self.apps.items()
        }
        self.apps["galley-dev"] = {
            "name": "galley-dev",
            "import_path": "their:app",
            "route_prefix": None,
        }
        return {"applications": found}


def test_a_deployment_leaves_the_applications_of_others_as_they_are(tmp_path: Path) -> None:
    from galley.cluster.on_ray.deploy import Deployment, remove

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
    from galley.cluster.on_ray.deploy import Deployment

    class Failing(RecordingClient):
        def get_serve_details(self) -> dict[str, Any]:
            details = super().get_serve_details()
            for name, app in details["applications"].items():
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
    from galley.cluster.on_ray import deploy

    class Updating(RecordingClient):
        def get_serve_details(self) -> dict[str, Any]:
            details = super().get_serve_details()
            replica = {"state": "RUNNING"}
            for app in details["applications"].values():
                app |= {"status": "DEPLOYING", "message": "port taken"}
                app["deployments"] = {"any": {"replicas": [replica]}}
            return details

    monkeypatch.setattr(deploy, "_POLL_SECONDS", 0.01)
    given = {"network": {"token_file": "token"}, "models": {"m": {"model": "a"}}}
    given["rollout"] = {"ready_seconds": 0.1, "drain_seconds": 0.1}
    client = RecordingClient()
    deploy.Deployment(client, read_config(given), lambda line: None).run()
    updating = Updating()
    updating.apps = before = dict(client.apps)
    # A replica is enough of what is there already.
    deploy.Deployment(updating, read_config(given), lambda line: None).run()
    changed = read_config({**given, "gateways": {"ports": [9000, 9000]}})
    with pytest.raises(GalleyError, match="port taken"):
        deploy.Deployment(updating, changed, lambda line: None).run()
    assert updating.apps["galley"]["args"] == before["galley"]["args"]
