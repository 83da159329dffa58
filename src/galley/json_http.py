"""Requests to other servers that carry keys and texts: no redirects, and answers of a bounded size."""

import http.client
import time
import urllib.request
from typing import Final
from urllib.parse import urlsplit

_CHUNK_BYTES: Final = 1 << 16


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Reports a redirect as an error: urllib would send the key to another server, without the body."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def is_server(url: str) -> bool:
    """Return whether a URL is that of a server: http or https, a host, no name or password."""
    try:
        place = urlsplit(url)
        return (
            place.scheme in ("http", "https") and bool(place.hostname) and "@" not in place.netloc
        )
    except ValueError:
        return False


def is_key(key: str) -> bool:
    """Return whether a key can be sent in a header."""
    return key.isascii() and key.isprintable()


def route_of(url: str, path: str) -> str:
    """Return the address of a route such as ``/v1/models`` at a server's URL, with or without ``/v1``."""
    return url.rstrip("/").removesuffix("/v1") + path


def exchange(request: urllib.request.Request, *, timeout: float, most: int) -> bytes:
    """Send a request and return the body of the answer.

    Args:
        request: to an address that begins with ``http://`` or ``https://``.
        timeout: seconds until the connection, and then until the whole answer.
        most: bytes that the answer may have.

    Raises:
        urllib.error.HTTPError: the status is not a success; a redirect is none.
        OSError: no server answers, in time, or with so few bytes.
        ValueError: the address or a header cannot be sent.
    """
    if not all(map(is_key, request.headers.values())):
        # urllib's own error shows the header, that is, the key.
        raise ValueError("the key has characters that no header can have, such as a line's end")
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            end = time.monotonic() + timeout
            body = bytearray()
            while chunk := answer.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > most:
                    raise OSError(f"the answer has more than {most} bytes")
                if time.monotonic() > end:
                    raise TimeoutError(f"the answer is not complete after {timeout:g} s")
            return bytes(body)
    except http.client.HTTPException as error:
        raise OSError(f"not an answer over HTTP: {error!r}") from error
