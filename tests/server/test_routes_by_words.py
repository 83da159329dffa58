"""The router finds the same route as Starlette's, which tries one after another."""

from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.testclient import TestClient

from galley.server.routes_by_words import RoutesByWords

PATHS = (
    "/",
    "/v2",
    "/v2/models/{model:path}/versions/{version}/infer",
    "/v2/models/{model:path}/infer",
    "/v2/models/{model:path}/versions/{version}",
    "/v2/models/{model:path}",
    "/v1/models",
    "/v1/models/{model:path}",
    "/{tenant}/infer",
    "/page/{file:path}",
    "/docs/{name}.html",
)
REQUESTS = (
    *("/", "/v2", "/v2/", "/v2/models/a/infer", "/v2/models/a/b/infer", "/v2/models/infer"),
    *("/v2/models/a/versions/1/infer", "/v2/models/a/versions/1", "/v2/models/a", "/v2/models/"),
    *("/v1/models", "/v1/models/", "/v1/models/x/infer", "/x/infer", "/v2/infer", "/none", "//"),
    *("/page/a/b", "/page", "/docs/x.html", "/docs/x", "/under/a/models", "/under", "/v2%2Fmodels"),
)


def answer(path: str) -> Route:
    async def name(request: Request) -> Response:
        return PlainTextResponse(f"{path} {request.path_params}")

    return Route(path, name, methods=["GET"])


@pytest.fixture
def clients() -> Iterator[tuple[TestClient, TestClient]]:
    routes: list[BaseRoute] = [answer(path) for path in PATHS]
    routes.append(Mount("/under", routes=[answer("/a/models")]))
    plain, quick = Router(routes, redirect_slashes=False), RoutesByWords(routes)
    with TestClient(plain) as one, TestClient(quick) as other:
        yield one, other


def test_every_request_finds_the_route_of_a_plain_router(
    clients: tuple[TestClient, TestClient],
) -> None:
    for method in ("GET", "POST"):
        for path in REQUESTS:
            plain, quick = (client.request(method, f"http://t{path}") for client in clients)
            assert (quick.status_code, quick.text) == (plain.status_code, plain.text), path
            assert quick.headers.get("allow") == plain.headers.get("allow"), path
