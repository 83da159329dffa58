"""Checks of a request's head beyond the parser's (RFC 9110, RFC 9112, RFC 6455)."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import httptools

from galley.protocols.common.errors import ApiError

_HOST: Final = re.compile(
    rb"(\[[0-9A-Fa-f:.]+(%25[\w.~-]+)?\]|([\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?"
)
"""``uri-host [":" port]`` (RFC 9110, section 7.2): neither spaces nor user names."""

_AUTHORITY: Final = re.compile(rb"\w+://([^/?#]*)")
"""The authority in a target in absolute form, which clients of proxies send."""

_VERSIONS: Final = ("1.1", "1.0")
"""Versions whose requests have the form that is read here (RFC 9110, section 2.5)."""

_WEBSOCKET_VERSION: Final = b"13"
_WEBSOCKET_KEY_BYTES: Final = 16


class Head(NamedTuple):
    """A request without its body.

    Attributes:
        method: in capitals.
        target: as it was sent.
        version: of HTTP, as "1.1".
        headers: names in lower case.
    """

    method: bytes
    target: bytes
    version: str
    headers: Sequence[tuple[bytes, bytes]]

    def all(self, name: bytes) -> list[bytes]:
        """Return the values of all headers of that name, without spaces around them."""
        return [value.strip(b" \t") for known, value in self.headers if known == name]

    def path_and_query(self) -> tuple[bytes, bytes]:
        """Return the target's path and its query, both as they were sent.

        Raises:
            ApiError: the target is not valid.
        """
        try:
            url = httptools.parse_url(self.target)
            if not self.target.isascii():
                raise ValueError
        except (httptools.HttpParserInvalidURLError, ValueError):
            raise bad_request(f"{_shown(self.target)} is not a valid request target") from None
        return url.path or b"/", url.query or b""

    def wants_websocket(self) -> bool:
        """Return whether the request is a WebSocket handshake, valid or not."""
        tokens = b",".join(self.all(b"connection")).lower().split(b",")
        return (
            self.version == "1.1"
            and [protocol.lower() for protocol in self.all(b"upgrade")[-1:]] == [b"websocket"]
            and b"upgrade" in [token.strip(b" \t") for token in tokens]
        )

    def without_upgrade(self) -> bytes:
        """Return the head as if it had been sent without the upgrade."""
        line = b"%b %b HTTP/%b\r\n" % (self.method, self.target, self.version.encode())
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join((line, *headers, b"\r\n"))


def fault_of(head: Head) -> ApiError | None:
    """Return the error with which to refuse the request, or None."""
    if head.method == b"CONNECT":
        return ApiError(
            501, "CONNECT is not supported; this server is not a proxy", code="no_proxy"
        )
    if head.version not in _VERSIONS:
        message = f"HTTP/{head.version} is not supported on this connection, only HTTP/1.1 and 1.0"
        return ApiError(505, message, code="http_version_unknown")
    return _fault_of_host(head) or _fault_of_framing(head)


def fault_of_handshake(head: Head) -> ApiError | None:
    """Return the error with which to refuse a WebSocket handshake, or None."""
    if head.method != b"GET":
        return bad_request(f"A WebSocket must be opened with GET, not {head.method.decode()}")
    if head.all(b"transfer-encoding") or any(size != b"0" for size in head.all(b"content-length")):
        return bad_request("A request that opens a WebSocket must not have a body")
    if head.all(b"sec-websocket-version") != [_WEBSOCKET_VERSION]:
        version = _WEBSOCKET_VERSION.decode()
        return ApiError(
            426,
            f"Sec-WebSocket-Version must be {version}",
            code="upgrade_required",
            headers={"Sec-WebSocket-Version": version, "Upgrade": "websocket"},
        )
    keys = head.all(b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        return bad_request("A WebSocket needs exactly one Sec-WebSocket-Key of 16 bytes in base64")
    return None


def _fault_of_host(head: Head) -> ApiError | None:
    hosts = head.all(b"host")
    if len(hosts) > 1 or (not hosts and head.version != "1.0"):
        return bad_request(
            f"A request must have exactly one Host header; this one has {len(hosts)}"
        )
    if hosts and not _HOST.fullmatch(hosts[0]):
        return bad_request(f"Host {_shown(hosts[0])} is not a valid host with or without a port")
    authority = _AUTHORITY.match(head.target)
    if hosts and authority and authority[1].lower() != hosts[0].lower():
        return bad_request(
            f"The request is for {_shown(authority[1])}, but Host is {_shown(hosts[0])}"
        )
    return None


def _fault_of_framing(head: Head) -> ApiError | None:
    codings = head.all(b"transfer-encoding")
    if codings and head.version == "1.0":
        return bad_request("Transfer-Encoding is not allowed in HTTP/1.0")
    if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
        return ApiError(
            501,
            f"Transfer-Encoding {_shown(b', '.join(codings))} is not supported, only chunked; declare a "
            "compressed body with Content-Encoding",
            code="transfer_encoding_unknown",
        )
    return None


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == _WEBSOCKET_KEY_BYTES
    except binascii.Error:
        return False


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))


def bad_request(message: str) -> ApiError:
    """Return the error of a request that is not valid HTTP."""
    return ApiError(400, message, code="invalid_http")
