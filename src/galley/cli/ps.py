"""``galley ps``: the models of a running server."""

import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import Command, Flags, with_flags
from galley.cli.terminal import in_bytes, table
from galley.errors import GalleyError

if TYPE_CHECKING:
    from galley.settings.config import Settings

_TIMEOUT_SECONDS: Final = 30.0


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
    cards = _get(url or _url(settings), settings.api_key[0] if settings.api_key else "")
    rows = [_row(card) for card in cards if everything or card.get("state") != "unloaded"]
    click.echo(table(("name", "state", "memory", "context", "until"), rows, left=(0, 1, 4)))


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


def _url(settings: "Settings") -> str:
    scheme = "https" if settings.tls_cert else "http"
    # A server that listens on all addresses listens on this one, too.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _get(url: str, key: str) -> list[dict[str, Any]]:
    """Return the list of models of a server.

    Raises:
        GalleyError: no server answers with a list of models.
    """
    if not url.startswith(("http://", "https://")):
        raise GalleyError(
            f"{url!r} is not the URL of a server; give one such as http://127.0.0.1:8000"
        )
    address = url.rstrip("/").removesuffix("/v1") + "/v1/models"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - see above
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            cards: list[dict[str, Any]] = json.load(answer)["data"]
            return cards
    except urllib.error.HTTPError as error:
        raise GalleyError(f"{address} answered {error.code}: {_said(error)}") from error
    except (OSError, ValueError, KeyError) as error:
        reason = getattr(error, "reason", error)
        raise GalleyError(
            f"no server answers at {address} ({reason}); start one with galley serve"
        ) from error


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason
