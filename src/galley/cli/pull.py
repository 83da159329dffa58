"""``galley pull``, ``list`` and ``rm``: the models on this machine."""

import time

import click

from galley.cli.options import Command
from galley.cli.terminal import ago, in_bytes, table
from galley.errors import ModelNotFound, RequestError
from galley.formats.aliases import aliases_of
from galley.formats.source import BUNDLED_MODELS, hub_name, resolve_model

_MODEL = "hub id (org/name), GGUF file on the hub (org/name/FILE.gguf) or short name (llama3.2)"


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", help=_MODEL)
@click.option("--revision", default="main", show_default=True, help="branch, tag or commit")
def pull(model: str, revision: str) -> None:
    """Download a model from the hub, so that it starts without a download.

    Files that are already present are not downloaded again, and an interrupted download resumes.
    """
    if model in BUNDLED_MODELS:
        resolve_model(model)
        click.echo(f"{model} is bundled with Galley; there is nothing to download")
        return
    found = hub_name(model)
    if found is None:
        raise RequestError(f"{model!r} is not a {_MODEL}")
    if found != model:
        click.echo(f"{model} is {found}")
    click.echo(str(resolve_model(model, revision=revision)))


@click.command("list", cls=Command)
def list_models() -> None:
    """List the models that start without a download, the newest first."""
    from galley.formats.hub_cache import stored_models

    rows = []
    for model in stored_models():
        short = ", ".join(aliases_of(model.name))
        rows.append((model.name, short, in_bytes(model.size), ago(time.time() - model.modified)))
    rows += [(name, "", "bundled", "") for name in BUNDLED_MODELS if _is_here(name)]
    click.echo(table(("name", "short name", "size", "modified"), rows, left=(0, 1, 3)))


def _is_here(bundled: str) -> bool:
    """Return whether this installation has the bundled model."""
    try:
        resolve_model(bundled)
    except ModelNotFound:
        return False
    return True


@click.command(cls=Command)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, help=_MODEL)
def rm(models: tuple[str, ...]) -> None:
    """Remove all revisions of downloaded models.

    A server that runs such a model keeps it until its engine restarts.
    """
    from galley.formats.hub_cache import remove

    for model in models:
        if model in BUNDLED_MODELS:
            raise RequestError(f"{model} is bundled with Galley and cannot be removed")
        click.echo(f"removed {model} ({in_bytes(remove(model))})")
    click.echo("galley cache prune removes packed weights that can no longer be used")
