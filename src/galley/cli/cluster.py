"""``galley cluster``: the replicas of a running server."""

from typing import Any, Final

import click

from galley.cli.options import Command, Flags, Group, with_flags
from galley.cli.server_api import call, server_url
from galley.cli.terminal import table

_DRAIN_SECONDS: Final = 86_400.0
"""A request may be pinned to the replica for as long as any request may take."""


@click.group("cluster", cls=Group)
def cluster_group() -> None:
    """Show and drain the replicas of a running server."""


@cluster_group.command(cls=Command)
@with_flags(("host", "port", "admin_key"))
@click.argument(
    "url", required=False, help="the server's URL; default: from the settings host and port"
)
def status(flags: Flags, url: str | None) -> None:
    """List the replicas of each model that a running server has loaded.

    The key is the first of --admin-key, GALLEY_ADMIN_KEY or galley.yaml.
    """
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
