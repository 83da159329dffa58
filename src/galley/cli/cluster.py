"""``galley cluster``: the replicas of a running server, and clusters on Ray Serve."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import Command, Flags, Group, with_flags
from galley.cli.server_api import call, server_url
from galley.cli.terminal import table

if TYPE_CHECKING:
    from galley.cluster.config import ClusterConfig

_DRAIN_SECONDS: Final = 86_400.0
"""A request may be pinned to the replica for as long as any request may take."""


@click.group("cluster", cls=Group)
def cluster_group() -> None:
    """Run clusters on Ray Serve, and show and drain the replicas of a running server."""


@cluster_group.command(cls=Command)
@with_flags(("host", "port", "admin_key"))
@click.argument(
    "url",
    required=False,
    metavar="[URL | CONFIG]",
    help="the server's URL, or the file of a cluster; default: from the settings host and port",
)
def status(flags: Flags, url: str | None) -> None:
    """List the replicas of each model of a running server, or of a cluster on Ray Serve.

    The key for a server is the first of --admin-key, GALLEY_ADMIN_KEY or galley.yaml.
    """
    if url is not None and Path(url).is_file():
        _show_cluster(_config(url))
        return
    settings = flags.settings()
    found = call(url or server_url(settings), "/admin/replicas", _key(settings.admin_key))
    rows = [_row(model["model"], one) for model in found["models"] for one in model["replicas"]]
    names = ("model", "replica", "state", "running", "waiting", "kv", "restarts", "version")
    click.echo(table(names, rows, left=(0, 1, 2, 7)))


@cluster_group.command(cls=Command)
@with_flags(("host", "port", "admin_key"))
@click.argument("model", help="the model's name")
@click.argument("replica", help="the replica's name, as in galley cluster status")
@click.argument(
    "url", required=False, help="the server's URL; default: from the settings host and port"
)
def drain(flags: Flags, model: str, replica: str, url: str | None) -> None:
    """Have the other replicas continue the requests of one, and end it.

    Texts continue exactly as they would have. Ends when the replica has left.
    """
    settings = flags.settings()
    body = {"model": model, "replica": replica}
    address = url or server_url(settings)
    call(address, "/admin/drain", _key(settings.admin_key), body, timeout=_DRAIN_SECONDS)
    click.echo(f"{replica} has left {model}")


@cluster_group.command(cls=Command, examples=("galley cluster up cluster.yaml",))
@click.argument("config", help="the cluster's YAML file")
def up(config: str) -> None:
    """Start a Ray node on this machine: the head, or one that joins it.

    Its ports, object store and memory are those of the section ray of the file. Ray's connections need the
    token of network.token_file. galley cluster down stops it.
    """
    cluster = _config(config)
    from galley.cluster.on_ray.node import start_node

    address = start_node(cluster)
    click.echo(f"this machine is a node of the Ray cluster at {address}")


@cluster_group.command(cls=Command, examples=("galley cluster deploy cluster.yaml",))
@click.argument("config", help="the cluster's YAML file")
def deploy(config: str) -> None:
    """Run what a file describes; changed releases are replaced without losing a stream.

    New releases are started first, then get the new requests; old ones are removed when they have completed
    theirs. If a new release does not start, everything stays as it was.
    """
    cluster = _config(config)
    from galley.cluster.on_ray.connect import connect
    from galley.cluster.on_ray.deploy import Deployment

    Deployment(connect(cluster), cluster, click.echo).run()
    _show_cluster(cluster)


@cluster_group.command(cls=Command, examples=("galley cluster down cluster.yaml --node",))
@click.option("--node", is_flag=True, help="also stop the Ray node of galley cluster up")
@click.argument("config", help="the cluster's YAML file")
def down(config: str, *, node: bool) -> None:
    """Remove a cluster from Ray Serve; running requests are completed first."""
    cluster = _config(config)
    from galley.cluster.on_ray.connect import connect
    from galley.cluster.on_ray.deploy import remove
    from galley.cluster.on_ray.node import stop_node

    gone = remove(connect(cluster), cluster)
    click.echo(f"removed {', '.join(gone)}" if gone else f"there is no cluster {cluster.name}")
    if node:
        click.echo(f"ended {stop_node(cluster)} processes of this machine's Ray node")


def _config(path: str) -> "ClusterConfig":
    """Return the configuration in a file, before Ray is imported.

    Raises:
        SettingsError: the file, the token or the extra ``ray`` cannot be used.
    """
    from galley.cluster.config import read_config
    from galley.cluster.extra import ray_environment, require_ray

    config = read_config(path)
    require_ray()
    os.environ.update(ray_environment(config.network.token_file))
    return config


def _show_cluster(config: "ClusterConfig") -> None:
    from galley.cluster.on_ray.connect import connect
    from galley.cluster.on_ray.figures import status_of

    found = status_of(connect(config), config)
    names = ("model", "release", "role", "share", "replica", "state", "requests", "TTFT")
    click.echo(table(names, found.replicas, left=(0, 1, 2, 4, 5)))
    for url in found.gateways:
        click.echo(f"gateway {url}")


def _key(keys: tuple[str, ...]) -> str:
    return keys[0] if keys else ""


def _row(model: str, replica: dict[str, Any]) -> tuple[str, ...]:
    return (
        model,
        replica["name"],
        replica["state"],
        str(replica["running"]),
        str(replica["waiting"]),
        f"{replica['kv_usage']:.0%}",
        str(replica["restarts"]),
        replica["version"],
    )
