"""``GET /``: a page to view the server with. Its files lie in the folder ``page`` and hold no secret.

The page calls the API with the key that its reader types in, so its files are served without one.
"""

from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER: Final = Path(__file__).with_name("page")
_INDEX: Final = "index.html"

_MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: nothing from other origins, nothing inline, no framing (W3C CSP 3)."""

_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def _path(file: Path) -> str:
    return "/" if file.name == _INDEX else f"/page/{file.name}"


_FILES: Final = {
    _path(file): file for file in sorted(_FOLDER.iterdir()) if file.suffix in _MEDIA_TYPES
}

PATHS: Final = frozenset(_FILES)
"""Paths of the page's files."""


def routes() -> list[Route]:
    """Return a route for each of the page's files."""
    return [Route(path, _answer) for path in _FILES]


async def _answer(request: Request) -> Response:
    file = _FILES[request.scope["route"].path]
    return Response(_content(file), headers=_HEADERS, media_type=_MEDIA_TYPES[file.suffix])


@cache
def _content(file: Path) -> bytes:
    return file.read_bytes()
