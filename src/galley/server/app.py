"""The HTTP application: routes, middlewares and the pages that describe it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from galley.gateway.registry import Registry
from galley.gateway.tenants import Tenants
from galley.observe.audit import AuditLog
from galley.observe.tracing import Tracing
from galley.protocols.anthropic import routes as anthropic
from galley.protocols.http import errors
from galley.protocols.http.budget import ByteBudget
from galley.protocols.http.large_bodies import LargeBodies
from galley.protocols.http.openapi import Operation, document
from galley.protocols.kserve import routes as kserve
from galley.protocols.oip import routes as oip
from galley.protocols.oip.generate import routes as oip_generate
from galley.protocols.oip.repository import routes as oip_repository
from galley.protocols.oip.unsupported import routes as oip_unsupported
from galley.protocols.ollama import routes as ollama
from galley.protocols.ollama.create import routes as ollama_create
from galley.protocols.ollama.embed import routes as ollama_embed
from galley.protocols.openai.audio import routes as audio
from galley.protocols.openai.chat import routes as chat
from galley.protocols.openai.completions import routes as completions
from galley.protocols.openai.embeddings import routes as embeddings
from galley.protocols.openai.models import routes as models
from galley.protocols.openai.realtime import routes as realtime
from galley.protocols.openai.responses import routes as responses
from galley.protocols.openai.speech import routes as speech
from galley.protocols.openai.tokens import routes as tokens
from galley.server import adapters, admin, health, page_files
from galley.server.access import AccessLog
from galley.server.auth import OPEN_PATHS, RequireHost, RequireKey
from galley.server.decoding import DecodeBodies
from galley.server.drain import DrainGate
from galley.server.routes_by_words import RoutesByWords
from galley.settings.config import LOOPBACK_HOSTS

_PREFLIGHT_SECONDS: Final = 600


class Served(Protocol):
    """A module whose routes are served."""

    def routes(self, models: Registry) -> Sequence[BaseRoute]:
        """Return the routes, answered by ``models``; operations are in the OpenAPI document."""


PROTOCOLS: tuple[Served, ...] = (
    *(chat, completions, responses, anthropic, ollama, ollama_create, ollama_embed),
    *(embeddings, audio, speech, realtime, kserve, models, tokens),
    *(oip, oip_repository, oip_generate, health),
)
"""Modules of routes for users of the models. Of two routes for a path, the first one answers."""


def create_app(
    registry: Registry, *, tenants: Tenants, tracing: Tracing | None = None
) -> Starlette:
    """Create the application that serves models, before, while and after they are ready.

    Args:
        registry: the models, with the settings that list the accepted Host headers.
        tenants: who may use them for how much.
        tracing: gets a span of each request.
    """
    settings = registry.settings
    open_paths = OPEN_PATHS | ({"/metrics"} if settings.metrics_without_key else frozenset())
    if settings.page:
        open_paths |= page_files.PATHS
    # A request passes these in order, after the access log.
    middleware: list[Middleware] = []
    if settings.host in LOOPBACK_HOSTS:
        middleware.append(
            Middleware(RequireHost, allowed=settings.allowed_host, origins=settings.cors_origin)
        )
    if settings.cors_origin:
        # Before the keys, because a browser's preflight request has no key.
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origin,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),
                expose_headers=("*",),
                max_age=_PREFLIGHT_SECONDS,
            )
        )
    middleware.append(Middleware(RequireKey, tenants=tenants, open_paths=open_paths))
    middleware.append(Middleware(DrainGate, lifecycle=registry.lifecycle))
    middleware.append(Middleware(DecodeBodies))
    operations = [route for protocol in PROTOCOLS for route in protocol.routes(registry)]
    operations += [*admin.routes(tenants, registry), *adapters.routes(registry)]
    # Before those whose {model} may be any path.
    routes = [*oip_unsupported.routes(), *operations]
    routes += _pages([route for route in operations if isinstance(route, Operation)])
    if settings.page:
        routes += page_files.routes()
    paths = (path for route in routes if isinstance(path := getattr(route, "path", ""), str))
    access = Middleware(
        AccessLog,
        metrics=registry.metrics,
        words=frozenset(word for path in paths for word in path.split("/")),
        log_prompts=settings.log_prompts,
        tracing=tracing,
        audit=AuditLog(Path(settings.audit_log)) if settings.audit_log else None,
    )
    app = Starlette(
        middleware=[access, *middleware],
        exception_handlers=errors.HANDLERS,
    )
    app.router = RoutesByWords(routes)
    app.state.objectives = settings.objectives
    app.state.body_budget = ByteBudget(
        settings.max_unfinished_body_bytes,
        of="The JSON bodies being received",
        setting="--max-unfinished-body-bytes",
        code="too_many_bodies",
    )
    app.state.large_bodies = LargeBodies()
    return app


def _pages(operations: list[Operation]) -> list[BaseRoute]:
    """Return ``GET /openapi.json`` and ``/docs``, generated at their first request."""
    described = cache(lambda: document(operations))

    async def openapi(_: Request) -> Response:
        return Response(msgspec.json.encode(described()), media_type="application/json")

    async def docs(_: Request) -> Response:
        from galley.server.docs_page import POLICY, render

        headers = {"Content-Security-Policy": POLICY}
        return Response(render(described()), headers=headers, media_type="text/html")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]
