"""Access to the server: API keys, and the Host names that a loopback bind accepts."""

import math
import re
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from galley.errors import SettingsError
from galley.gateway.tenants import Account, Tenants
from galley.protocols.common.errors import ApiError
from galley.protocols.http.errors import RESPONSE_STARTS, error_response
from galley.protocols.http.header_values import header_values, set_headers
from galley.settings.config import LOOPBACK_HOSTS, Settings

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/v2/health/live", "/v2/health/ready"})
"""Paths answered without a key, for orchestrators; they only report up or down."""

ADMIN_PATHS: Final = (
    *("/admin", "/api/pull", "/api/delete", "/api/create", "/api/copy"),
    *("/v1/adapters", "/v2/repository/models"),
)
"""Paths that, with all below them, change the server or its files on disk."""

_ADMIN_FOLDERS: Final = tuple(f"{path}/" for path in ADMIN_PATHS)

KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""Prefix of a WebSocket subprotocol that is an API key."""

_SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing and create nothing; a page of another origin cannot read their responses."""

_WEB: Final = ("http", "https")
_PORT: Final = re.compile(r":\d*\Z", re.ASCII)


def check_exposure(settings: Settings, tenants: Tenants) -> None:
    """Raise an error if everyone who can reach the machine could use the server.

    Raises:
        SettingsError: the bind is public and there is no key.
    """
    if settings.host not in LOOPBACK_HOSTS and not tenants:
        raise SettingsError(
            f"host {settings.host!r} is reachable from other machines, so an API key is required: set "
            "GALLEY_API_KEY, --api-key or --api-key-file; or bind to 127.0.0.1"
        )


def knows(tenants: Tenants, scope: Scope) -> bool:
    """Return whether a request has a valid key, or none is required."""
    presented = _presented(scope)
    return not tenants or tenants.identify(presented) is not None or tenants.is_admin(presented)


class RequireKey:
    """ASGI middleware: 401 without a valid ``Authorization``, except for the open paths.

    :data:`ADMIN_PATHS`, and paths below them, need an admin key, on every bind. Leaves the tenant's account
    in ``scope["state"]["account"]``, and adds the headers of its limits to the response.
    """

    def __init__(self, app: ASGIApp, tenants: Tenants, open_paths: frozenset[str]) -> None:
        self._app = app
        self._tenants = tenants
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        path = scope["path"]
        if path in self._open_paths:
            await self._app(scope, receive, send)
            return
        presented = _presented(scope)
        admin = f"{path}/".startswith(_ADMIN_FOLDERS)
        account = self._tenants.identify(presented) if self._tenants else self._tenants.anonymous
        state = scope["state"]
        if account is not None:
            state["account"] = account
            if account.tenant.name:
                state["record"]["tenant"] = account.tenant.name
        if admin or account is None:
            monitors = path == "/metrics" and account is None
            if not ((admin or monitors) and self._tenants.is_admin(presented)):
                error = self._refusal(bool(presented), account is not None, admin=admin)
                await error_response(error)(scope, receive, send)
                return

        if scope["type"] == "websocket":
            state["checks"].append(partial(self._check_again, presented, account))

        async def send_with_limits(message: Message) -> None:
            if account is not None and message["type"] in RESPONSE_STARTS:
                set_headers(message, rate_headers(account))
            await send(message)

        await self._app(scope, receive, send_with_limits)

    def _check_again(self, presented: str, account: Account | None) -> None:
        """Raise ApiError if a key that was accepted has been removed since."""
        if self._tenants and self._tenants.identify(presented) is not account:
            raise _unauthorized(given=bool(presented))

    def _refusal(self, presented: bool, known: bool, *, admin: bool) -> ApiError:
        if admin and not self._tenants.has_admin:
            return _forbidden(
                "The admin routes are off; start the server with --admin-key, or set admin: true "
                "for a tenant in the key file",
                code="admin_disabled",
            )
        if admin and presented and known and self._tenants:
            return _forbidden("Admin key required", code="admin_key_needed")
        return _unauthorized(presented)


def rate_headers(account: Account) -> dict[str, str]:
    """Return OpenAI's rate-limit headers: the tenant's limits, the remainder, and the time until reset."""
    now = time.monotonic()
    headers = {}
    for kind, bucket in (("requests", account.requests), ("tokens", account.tokens)):
        if bucket is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(bucket.left(now))))
            headers[f"x-ratelimit-reset-{kind}"] = _duration(bucket.wait(bucket.limit, now))
    return headers


def _duration(seconds: float) -> str:
    """Format a duration as OpenAI does, in Go's form: ``6m0s``, ``1.5s``, ``20ms``, ``0s``."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _presented(scope: Scope) -> str:
    """Return the bearer token, or the header ``x-api-key``; "", which is not a key, without one.

    A page in a browser can set no header of a WebSocket but its subprotocols, so a key may be one of them,
    as OpenAI's clients in browsers send it.
    """
    headers = header_values(scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    if key := headers.get("x-api-key", ""):  # as Anthropic's clients send it
        return key.strip()
    keys = (p for p in scope.get("subprotocols", ()) if p.startswith(KEY_PROTOCOL))
    return next(keys, "").removeprefix(KEY_PROTOCOL)


class RequireHost:
    """ASGI middleware for a loopback bind: 403 for hosts and pages that are not this machine's.

    A web page whose name was made to resolve to 127.0.0.1 (DNS rebinding) can otherwise use the browser of
    somebody on this machine to reach the server: the Host header names the page's host. A browser also
    lets every page send a form to any host, or open a WebSocket to it. The browser names the page's origin,
    and no page can change that (Fetch standard): a request that may have an effect, or opens a WebSocket,
    must come from a page of this machine, or of an origin that the operator has named.
    """

    def __init__(
        self, app: ASGIApp, *, allowed: Iterable[str] = (), origins: Iterable[str] = ()
    ) -> None:
        """Wrap ``app``.

        Args:
            app: handles the requests.
            allowed: further Host values, whose pages may also send requests.
            origins: whose pages may send requests; "*" is any.
        """
        self._app = app
        self._allowed = frozenset({*LOOPBACK_HOSTS, *(host.lower() for host in allowed)})
        self._origins = frozenset(origin.lower() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        error = self._refusal(scope, header_values(scope))
        await (error_response(error) if error else self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> ApiError | None:
        host = headers.get("host", "")
        if not self._is_own_host(host):
            return _foreign("Host", host, "--allowed-host adds one")
        if scope.get("method") in _SAFE or "*" in self._origins:
            return None
        # A browser that sends no origin still reports whether the page is of another site.
        across = headers.get("sec-fetch-site") == "cross-site"
        if not across and "origin" not in headers:
            return None
        for origin in Headers(scope=scope).getlist("origin") or ["null"]:
            scheme, _, authority = origin.lower().rpartition("://")
            ours = scheme in _WEB and self._is_own_host(authority)
            if not ours and origin.lower() not in self._origins:
                return _foreign("Origin", origin, "--cors-origin adds one")
        return None

    def _is_own_host(self, host: str) -> bool:
        host = host.lower()
        return host in self._allowed or _without_port(host) in self._allowed


def _without_port(host: str) -> str:
    """Strip the port: ``[::1]:80`` -> ``::1``, ``localhost:80`` -> ``localhost``, else the host unchanged.

    ``localhost:80@x`` is returned as it is.
    """
    name = _PORT.sub("", host)
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _unauthorized(given: bool) -> ApiError:
    message = (
        "Incorrect API key"
        if given
        else "API key required; send the header 'Authorization: Bearer KEY'"
    )
    return ApiError(
        401,
        message,
        type="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _foreign(header: str, value: str, remedy: str) -> ApiError:
    return _forbidden(
        f"{header} {value[:100]!r} is not allowed; {remedy}",
        code=f"{header.lower()}_not_allowed",
    )


def _forbidden(message: str, *, code: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code=code)
