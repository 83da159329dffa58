"""Requests of commands to a running server."""

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from galley.errors import GalleyError
from galley.json_http import exchange, route_of

if TYPE_CHECKING:
    from galley.settings.config import Settings

TIMEOUT_SECONDS: Final = 30.0
_MOST_BYTES: Final = 64 << 20


def server_url(settings: "Settings") -> str:
    """Return the URL of a server with these settings on this machine."""
    scheme = "https" if settings.tls_cert else "http"
    # A server that listens on all addresses listens on this one, too.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def call(
    url: str,
    path: str,
    key: str,
    body: dict[str, Any] | None = None,
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> Any:
    """Return the JSON that a server answers with.

    Args:
        url: the server's URL, with or without ``/v1``.
        path: the route.
        key: the key; empty: none.
        body: sent as JSON with a POST; None: a GET.
        timeout: in seconds.

    Raises:
        GalleyError: no server answers, or it refuses.
    """
    if not url.startswith(("http://", "https://")):
        raise GalleyError(
            f"{url!r} is not the URL of a server; give one such as http://127.0.0.1:8000"
        )
    address = route_of(url, path)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(address, data, headers)  # noqa: S310 - see above
    try:
        return json.loads(exchange(request, timeout=timeout, most=_MOST_BYTES))
    except urllib.error.HTTPError as error:
        raise GalleyError(f"{address} answered {error.code}: {_said(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise GalleyError(
            f"no server answers at {address} ({reason}); start one with galley serve"
        ) from error


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(_MOST_BYTES))["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason
