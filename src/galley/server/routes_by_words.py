"""A router that tries only the routes whose first and last words are those of the request's path.

Starlette's tries one after another, and the expression of each costs more than the rest of the search.
"""

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from galley.protocols.common.errors import ApiError
from galley.protocols.http.errors import error_response

_ANY = ""
"""A word that is a parameter, or that no route has."""


class RoutesByWords(Router):
    """Routes, in the same order as in the list."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        """Create the router. Routes are not added later."""
        super().__init__(routes, redirect_slashes=False)
        self._words = [_ends(route) for route in routes]
        self._firsts = frozenset(first for first, _ in self._words)
        self._lasts = frozenset(last for _, last in self._words)
        self._routers: dict[tuple[str, str], Router] = {}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the routes that may match it."""
        if scope["type"] == "lifespan":
            await super().app(scope, receive, send)
            return
        scope.setdefault("router", self)
        path = scope["path"]
        first, last = path.split("/", 2)[1:2], path.rpartition("/")[2]
        key = (
            first[0] if first and first[0] in self._firsts else _ANY,
            last if last in self._lasts else _ANY,
        )
        router = self._routers.get(key)
        if router is None:
            router = self._routers[key] = self._router(*key)
        await router.app(scope, receive, send)

    async def not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that no route matches; a WebSocket would get 403, as if a key were missing."""
        if scope["type"] != "websocket":
            await super().not_found(scope, receive, send)
            return
        paths = [route.path for route in self.routes if isinstance(route, WebSocketRoute)]
        error = ApiError(
            404,
            f"There is no WebSocket at {scope['path'][:100]}; those of this server are {', '.join(paths)}",
            code="unknown_url",
        )
        await WebSocket(scope, receive, send).send_denial_response(error_response(error))

    def _router(self, first: str, last: str) -> Router:
        routes = [
            route
            for route, words in zip(self.routes, self._words, strict=True)
            if words[0] in (first, _ANY) and words[1] in (last, _ANY)
        ]
        return Router(routes, redirect_slashes=False, default=self.default)


def _ends(route: BaseRoute) -> tuple[str, str]:
    """Return the first and the last word of a route's path."""
    path: str = getattr(route, "path", "/{}")
    first, last = path.strip("/").split("/", 1)[0], path.rpartition("/")[2]
    further = "{" in last or not isinstance(route, (Route, WebSocketRoute))
    return _ANY if "{" in first else first, _ANY if further else last
