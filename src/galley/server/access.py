"""One log line, count, id and response for each request or WebSocket, never with its text or key."""

import logging
import re
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from galley.observe.audit import AuditLog
from galley.observe.logs import quoted, readable
from galley.observe.metrics import Metrics
from galley.observe.tracing import Finished, Trace, Tracing
from galley.protocols.common.errors import ApiError
from galley.protocols.http.errors import CLIENT_GONE, RESPONSE_STARTS, error_response
from galley.protocols.http.header_values import header_values, set_headers
from galley.server.drain import PROBES

log = logging.getLogger("galley.access")


REQUEST_ID_HEADER: Final = "x-request-id"


_SWITCHING_PROTOCOLS: Final = 101
_REQUEST_ID: Final = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_MOST_SEGMENTS: Final = 8
_FOREIGN_WORDS: Final = frozenset(
    (
        *("api", "openai", "engines", "generate", "embeddings", "embed", "responses", "rerank"),
        *("messages", "moderations", "images", "files", "batches", "tags", "show", "ps", "version"),
        *("favicon.ico", "robots.txt"),
    )
)
"""Path segments of other servers' APIs; requests for them come from misconfigured clients."""


class AccessLog:
    """ASGI middleware, the outermost: errors that nothing else handles end here.

    Leaves in ``scope["state"]``: ``request_id``, unique; ``arrived`` (on the monotonic clock); ``record``,
    ``trace`` and ``headers``, to which others add fields of the log line, the trace and the response;
    ``log_prompts``; and for a WebSocket, on which many requests may come, ``checks``, each of which raises
    ApiError where a new request is to be refused, and ``part_ended``, which records such a request. The
    response's header ``X-Request-Id`` is the request's own, if it is well-formed,
    else ``request_id``.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        words: frozenset[str] = frozenset(),
        log_prompts: bool = False,
        tracing: Tracing | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """Wrap ``app``.

        Args:
            app: handles the requests.
            metrics: counts them.
            words: segments of the app's paths; of other paths only these are logged.
            log_prompts: whether the log may include the text of requests.
            tracing: receives each request that ends.
            audit: gets a line for each request; while it cannot be written, requests are refused.
        """
        self._app = app
        self._metrics = metrics
        self._words = words | _FOREIGN_WORDS
        self._log_prompts = log_prompts
        self._tracing = tracing
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        arrived = time.monotonic()
        request_id = secrets.token_hex(12)
        shown_id = _given_id(scope) or request_id
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, arrived=arrived, record={}, trace=Trace())
        state["log_prompts"] = self._log_prompts
        if scope["type"] == "websocket":
            state.update(checks=[self._check_audit], part_ended=partial(self._part_ended, scope))
        headers: dict[str, str] = state.setdefault("headers", {})
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in RESPONSE_STARTS:
                status = message.get("status", _SWITCHING_PROTOCOLS)
                set_headers(message, {"X-Request-Id": shown_id, **headers})
            await send(message)

        try:
            if scope["path"] not in PROBES:
                self._check_audit()
            await self._app(scope, receive, send_with_id)
        except ApiError as error:
            await error_response(error)(scope, receive, send_with_id)
        except Exception as error:
            log.exception("request %s failed", shown_id)
            if status is None:
                await error_response(error)(scope, receive, send_with_id)
        finally:
            state.pop("part_ended", None)  # it refers to the scope
            self._ended(scope, shown_id, status or CLIENT_GONE)

    def _check_audit(self) -> None:
        if self._audit is not None and not self._audit.usable:
            raise ApiError(
                503,
                "The server's audit log cannot be written",
                type="service_unavailable",
                code="audit_log_unavailable",
            )

    def _part_ended(self, scope: Scope, part: Mapping[str, Any], status: int) -> None:
        """Record a request that came within a connection.

        Args:
            scope: the connection's.
            part: the request's own ``request_id``, ``arrived``, ``record`` and ``trace``.
            status: the status that its answer would have had.
        """
        own = {**scope, "state": {**scope["state"], **part}}
        self._ended(own, part["request_id"], status)

    def _ended(self, scope: Scope, shown_id: str, status: int) -> None:
        """Count the request, trace it and write its line. ``status``: as it was sent."""
        state, endpoint = scope["state"], _route(scope)
        seconds = time.monotonic() - state["arrived"]
        record: dict[str, Any] = state["record"]
        status = record.pop("status", status)
        account = state.get("account")
        self._metrics.request_answered(endpoint, status, account and account.tenant.name)
        if self._audit is not None and scope["path"] not in PROBES:
            who = {"tenant": account.tenant.name} if account else {}
            written = {"id": shown_id, "status": status, **who, **record}
            self._audit.request(scope.get("method", "WS"), endpoint, written)
        fields: dict[str, Any] = {"id": shown_id}
        if shown_id != state["request_id"]:
            fields["request"] = state["request_id"]
        if scope.get("client"):
            fields["client"] = scope["client"][0]
        fields |= record
        if self._tracing is not None:
            finished = Finished(endpoint, status, state["arrived"], seconds, fields, state["trace"])
            fields |= self._tracing.request_ended(finished, Headers(scope=scope))
        level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
        if not log.isEnabledFor(level):
            return
        method, path = scope.get("method", "WS"), self._path(scope)
        request_fields = {
            "method": method,
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
        }
        log.log(
            level,
            "%s %s %d %.3fs %s",
            method,
            quoted(path),
            status,
            seconds,
            readable(fields),
            extra={"fields": {**request_fields, **fields, "message": f"{method} {path} {status}"}},
        )

    def _path(self, scope: Scope) -> str:
        """Return the route's template; of other paths, which may hold anything, the known words."""
        route = getattr(scope.get("route"), "path", None)
        if isinstance(route, str):
            return route
        path: str = scope["path"]
        if self._log_prompts:
            return path
        segments = path.split("/")[: _MOST_SEGMENTS + 1]
        return "/".join(s if not s or s in self._words else "*" for s in segments)


def _given_id(scope: Scope) -> str | None:
    """Return the id that the client gave the request, if it can be logged as it is."""
    given = header_values(scope).get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else None


def _route(scope: Scope) -> str:
    """Return the route's template: paths are the client's text, of any number and content."""
    return getattr(scope.get("route"), "path", "unknown")
