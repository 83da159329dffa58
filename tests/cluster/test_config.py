"""The file that describes a cluster."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from galley.cli.cluster import cluster_group
from galley.cluster.config import Release, read_config
from galley.cluster.extra import ray_environment
from galley.errors import SettingsError

WHOLE = """\
network: {token_file: token, host: 127.0.0.1}
models:
  chat:
    model: org/name
    settings: {weight_dtype: int8, max-running: 16}
    replicas: {min: 0, max: 4, zero_seconds: 60}
    resources: {cpus: 2, custom: {zone: 1}}
    slo: {ttft_ms: 500}
    canary: {model: org/name, revision: next, share: 10}
  vectors: {model: org/embed, replicas: 2}
gateways: {replicas: 2, host: 0.0.0.0, settings: {api_key_file: keys, max_queue: 9}}
"""


def given(**changes: Any) -> dict[str, Any]:
    """Return the contents of a small file, with changes."""
    network = {"token_file": "token"}
    return {"network": network, "models": {"m": {"model": "org/name"}}} | changes


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(WHOLE)
    config = read_config(path)
    assert read_config({"config": str(path)}) == config
    chat = config.models["chat"]
    assert config.replica_settings(chat)["weight_dtype"] == "int8"
    assert config.replica_settings(chat)["threads"] == 2
    assert config.gateway_settings().max_queue == 9
    assert (chat.scale.min, chat.scale.max) == (0, 4)
    assert config.models["vectors"].scale.min == config.models["vectors"].scale.max == 2
    assert chat.canary is not None
    assert chat.canary.name != chat.name


def test_a_release_has_the_name_of_its_contents() -> None:
    one = Release(model="a", settings={"x": 1, "y": 2})
    assert one.name == Release(model="a", settings={"y": 2, "x": 1}, replicas=7).name
    spelled = [Release(model="a", settings={name: 1}) for name in ("max-running", "max_running")]
    assert spelled[0].name == spelled[1].name
    others = [
        Release(model="b", settings=one.settings),
        Release(model="a"),
        Release(model="a", settings=one.settings, revision="r"),
        Release(model="a", settings=one.settings, version="v2"),
    ]
    assert len({other.name for other in (one, *others)}) == 5
    assert others[-1].name.startswith("v2-")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modles": {}}, "unknown field `modles`"),
        ({"models": {}}, "length >= 1"),
        ({"name": "galley.dev"}, "matching regex"),
        ({"models": {"m": {}}}, r"missing required field `model` - at `\$.models\[...\]`"),
        ({"models": {"m": {"model": "a", "version": "_1"}}}, "matching regex"),
        ({"models": {"m": {"model": "a", "replica": 2}}}, "unknown field `replica`"),
        ({"models": {"m": {"model": "a", "replicas": 0}}}, ">= 1"),
        ({"models": {"m": {"model": "a", "replicas": {"min": 3, "max": 2}}}}, "max is 2, but min"),
        ({"models": {"m": {"model": "a", "settings": {"treads": 1}}}}, "unknown setting 'treads'"),
        ({"models": {"m": {"model": "a", "settings": {"max_running": 0}}}}, "models: m"),
        ({"models": {"m": {"model": "a", "settings": {"model": "b"}}}}, "move it out of settings"),
        ({"models": {"m": {"model": "a", "canary": {"model": "a"}}}}, "same as the stable"),
        ({"models": {"m": {"model": "a", "canary": {"model": "b", "share": 101}}}}, "<= 100"),
        ({"gateways": {"ports": [9000, 8000]}}, "first must not be after"),
        ({"gateways": {"settings": {"port": 1}}}, "the cluster determines port"),
        ({"gateways": {"settings": {"replicas": 1}}}, "the cluster determines replicas"),
        ({"gateways": {"settings": {"drain-seconds": 5}}}, "the cluster determines drain_seconds"),
        ({"gateways": {"settings": {"api-key": ["k"]}}}, "must not have secrets"),
        ({"gateways": {"settings": {"response_cache": "exact"}}}, "response cache"),
        ({"ray": {"ports": [20000, 20009]}}, "at least 32"),
        ({"ray": {"object_store_bytes": 1}}, ">= 80000000"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(given(**changes)))
    with pytest.raises(SettingsError, match=message) as raised:
        read_config(path)
    assert "cluster.yaml" in str(raised.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml is not a file"):
        read_config("nowhere.yaml")


def test_the_example_is_valid() -> None:
    config = read_config(Path(__file__).parents[2] / "deploy" / "ray" / "cluster.yaml")
    assert config.models["chat"].scale.max == 4


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize("command", ["up", "deploy", "down", "status"])
def test_commands_need_ray(command: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(WHOLE)
    result = CliRunner().invoke(cluster_group, [command, str(path)])
    assert isinstance(result.exception, SettingsError)
    assert "galley-inference[ray]" in str(result.exception)


def test_rays_own_connections_need_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    token = tmp_path / "token"
    with pytest.raises(SettingsError, match="is not a file"):
        ray_environment(str(token))
    token.write_text("secret")
    given = ray_environment(str(token))
    assert given == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
