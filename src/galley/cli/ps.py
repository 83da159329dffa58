"""``galley ps``: the models of a running server."""

import time
from typing import Any

import click

from galley.cli.options import Command, Flags, with_flags
from galley.cli.server_api import call, server_url
from galley.cli.terminal import in_bytes, table
from galley.errors import GalleyError


@click.command(cls=Command)
@with_flags(("host", "port", "api_key"))
@click.argument(
    "url", required=False, help="the server's URL; default: from the settings host and port"
)
@click.option("--all", "everything", is_flag=True, help="include models that are not loaded")
def ps(flags: Flags, url: str | None, everything: bool) -> None:
    """List the models that a running server has loaded, and when they will be unloaded.

    The key is the first of --api-key, GALLEY_API_KEY or galley.yaml.
    """
    settings = flags.settings()
    key = settings.api_key[0] if settings.api_key else ""
    cards = _cards(call(url or server_url(settings), "/v1/models", key))
    rows = [_row(card) for card in cards if everything or card.get("state") != "unloaded"]
    click.echo(table(("name", "state", "memory", "context", "until"), rows, left=(0, 1, 4)))


def _cards(answer: Any) -> list[dict[str, Any]]:
    try:
        cards: list[dict[str, Any]] = answer["data"]
    except (KeyError, TypeError):
        raise GalleyError("the server's answer is not a list of models") from None
    return cards


def _row(card: dict[str, Any]) -> tuple[str, str, str, str, str]:
    memory, context, until = (card.get(n) for n in ("memory", "max_model_len", "expires_at"))
    loaded = card.get("state", "loaded") == "loaded"
    return (
        card["id"],
        card.get("state", "loaded"),
        "" if memory is None else in_bytes(memory),
        "" if context is None else str(context),
        ("the server stops" if until is None else _ahead(until - time.time())) if loaded else "",
    )


def _ahead(seconds: float) -> str:
    if seconds < 60:
        return f"in {max(0, round(seconds))} s"
    return f"in {round(seconds / 60)} min" if seconds < 5400 else f"in {round(seconds / 3600)} h"
