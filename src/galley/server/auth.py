"""Who may talk to the server: API keys, and which Host names a loopback bind answers to."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from galley.api.errors import ApiError
from galley.config import LOOPBACK_HOSTS, Settings
from galley.errors import SettingsError
from galley.server.errors import error_response

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
"""Answered without a key, for orchestrators; they tell nothing but up or down."""


class KeyRing:
    """The accepted API keys, held as SHA-256 digests only. Empty means that none is asked for."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple({_digest(key) for key in keys})

    @classmethod
    def load(cls, settings: Settings) -> "KeyRing":
        """The keys of :func:`read_keys`, and raises as it does."""
        return cls(read_keys(settings))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def identify(self, presented: str) -> str | None:
        """A stable name of the key that ``presented`` is, or ``None``.

        Compares with every key in full, so the time taken tells nothing.
        """
        digest = _digest(presented)
        found = None
        for known in self._digests:
            if hmac.compare_digest(digest, known):
                found = known.hex()
        return found


def read_keys(settings: Settings) -> list[str]:
    """The keys of ``settings.api_key``, then those of ``settings.api_key_file``.

    Raises:
        SettingsError: the file cannot be read or holds no key, or a key could not be sent.
    """
    keys = [("api_key", key) for key in settings.api_key]
    if settings.api_key_file:
        name = f"api_key_file {settings.api_key_file}"
        keys += [(name, key) for key in _file_keys(settings.api_key_file)]
    for name, key in keys:
        # A header is Latin-1 at best, and clients differ in how they would encode the rest.
        if not (key.isascii() and key.isprintable() and key == key.strip()):
            raise SettingsError(
                f"{name}: a key holds a character that is not printable ASCII, or begins or ends with "
                "a space; no client could send it in a header"
            )
    return [key for _, key in keys]


def check_exposure(settings: Settings, keys: KeyRing) -> None:
    """Refuse to serve everyone who can reach the machine.

    Raises:
        SettingsError: the bind is public and there is no key.
    """
    if settings.host not in LOOPBACK_HOSTS and not keys:
        raise SettingsError(
            f"host {settings.host!r} can be reached from other machines, so it needs an API key: set "
            "GALLEY_API_KEY, --api-key or --api-key-file; or bind to 127.0.0.1"
        )


class RequireKey:
    """ASGI middleware: 401 for every path but the open ones without a valid ``Authorization``.

    Leaves the key's identity in ``scope["state"]["tenant"]``.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, open_paths: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if self._keys and scope["path"] not in self._open_paths:
            scheme, _, presented = Headers(scope=scope).get("authorization", "").partition(" ")
            identity = self._keys.identify(presented.strip())
            if scheme.lower() != "bearer" or identity is None:
                await error_response(_unauthorized(bool(presented)))(scope, receive, send)
                return
            scope["state"]["tenant"] = identity
        await self._app(scope, receive, send)


class RequireHost:
    """ASGI middleware for a loopback bind: 403 for a Host header that is not this machine's.

    A web page whose name was made to resolve to 127.0.0.1 (DNS rebinding) can otherwise use the
    browser of somebody on this machine to talk to the server. A browser lets every page open a WebSocket to
    any host, and says with Origin which page it was: that must be this machine's, too.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset({*LOOPBACK_HOSTS, *(host.lower() for host in allowed)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        headers = Headers(scope=scope)
        named = [("Host", headers.get("host", ""))]
        if scope["type"] == "websocket" and "origin" in headers:
            named.append(("Origin", headers["origin"].rpartition("/")[2]))
        for header, host in named:
            if _host_name(host) not in self._allowed and host.lower() not in self._allowed:
                await error_response(_foreign(header, host))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _file_keys(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"api_key_file {path} cannot be read: {error}") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise SettingsError(f"api_key_file {path} holds no key; write one a line")
    return keys


def _host_name(header: str) -> str:
    """``[::1]:80`` -> ``::1``, ``localhost:80`` -> ``localhost``."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _unauthorized(given: bool) -> ApiError:
    message = (
        "Incorrect API key"
        if given
        else "This server needs an API key: send the header 'Authorization: Bearer KEY'"
    )
    return ApiError(
        401,
        message,
        type="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _foreign(header: str, host: str) -> ApiError:
    return ApiError(
        403,
        f"{header} {host[:100]!r} is not one this server answers to; --allowed-host adds one",
        type="permission_error",
        code="host_not_allowed",
    )
