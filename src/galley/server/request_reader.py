"""Reads HTTP/1.1 requests from bytes, with a bound on everything but the size of bodies."""

import enum
from typing import Final, Protocol

import httptools

from galley.protocols.common.errors import ApiError
from galley.server.head import Head, bad_request, fault_of, fault_of_handshake
from galley.settings.config import Settings

_FRAMING_PER_BYTE: Final = 8
"""Bytes of chunk sizes, extensions and trailers allowed for each byte of body, beyond the header limit."""

_LARGE_BODY: Final = 128 * 1024
"""Length from which a body is not given to the parser, which would copy it."""


class Phase(enum.Enum):
    """The part of a request to which the next byte belongs."""

    HEADERS = enum.auto()
    BODY = enum.auto()
    BETWEEN = enum.auto()
    """No request has begun since the last one ended."""


# Looked up several times for each request, and slowly through enum (Python 3.11).
HEADERS, BODY, BETWEEN = Phase


class Receiver(Protocol):
    """Receives the parts of requests. Methods may raise :class:`ApiError` to refuse a request."""

    def request_began(self) -> None:
        """Handle the first byte of a request that follows another."""

    def request_head(self, head: Head, *, keep_alive: bool) -> None:
        """Handle a head; ``keep_alive``: the client may send another request afterwards."""

    def request_body(self, data: bytes) -> None:
        """Handle a part of the body."""

    def request_ended(self) -> None:
        """Handle the end of the body."""

    def websocket_head(self, head: Head, rest: bytes) -> None:
        """Handle a valid handshake; ``rest``: the bytes after it, all that this reader reads."""


class RequestReader:
    """Reads the requests of one connection.

    Attributes:
        phase: the part of a request to which the next byte belongs.
    """

    def __init__(self, receiver: Receiver, limits: Settings, *, websockets: bool) -> None:
        """Create a reader at the beginning of a connection.

        Args:
            receiver: receives the requests.
            limits: those of headers.
            websockets: whether WebSocket handshakes are accepted. Other upgrades never are: their
                requests are read as if they were not upgrades (RFC 9110, section 7.8).
        """
        self.phase = HEADERS
        self._receiver = receiver
        self._limits = limits
        self._websockets = websockets
        self._parser = _new_parser(self)
        self.on_message_begin()

    def close(self) -> None:
        """Read nothing more, and free this without a garbage collection: the parser refers to it."""
        del self._parser

    def feed(self, data: bytes) -> None:
        """Read ``data``.

        Raises:
            ApiError: the request is not valid, or too large. Nothing can be read after it.
        """
        if self._unparsed and self.phase is BODY:
            data = self._pass_on(data)
            if not data:
                return
        phase = self.phase
        self._received += len(data)
        self._parse(data)
        if self.phase is not phase or self._is_websocket:
            return
        if phase is HEADERS and self._received > self._limits.max_header_bytes:
            raise self._too_large()
        if phase is BODY:
            allowed = self._limits.max_header_bytes + _FRAMING_PER_BYTE * self._body_bytes
            if self._received - self._body_bytes > allowed:
                raise bad_request("The body is mostly chunk sizes, extensions or trailers")

    @property
    def unparsed(self) -> int:
        """Bytes of a large body that have yet to arrive, and which no parser has to see; 0: none."""
        return self._unparsed if self.phase is BODY else 0

    def passed(self, size: int) -> None:
        """Count this many of the :attr:`unparsed` bytes, which the receiver has received by itself."""
        self._unparsed -= size
        if not self._unparsed:
            self._parser = _new_parser(self)  # the one before still expects the body
            self._end_request()

    def _pass_on(self, data: bytes) -> bytes:
        """Pass on the part of ``data`` that belongs to the body; return what follows it."""
        left = self._unparsed
        body = data if len(data) <= left else data[:left]
        self._receiver.request_body(body)
        self.passed(len(body))
        return data[len(body) :]

    def _parse(self, data: bytes) -> None:
        while (rest := self._parse_to_upgrade(data)) is not None:
            if self._is_websocket:
                self._receiver.websocket_head(self._head, rest)
                return
            self._parser = _new_parser(self)
            data = self._head.without_upgrade() + rest

    def _parse_to_upgrade(self, data: bytes) -> bytes | None:
        """Return what follows the head of a request for an upgrade; None if there is none.

        The parser takes what follows such a head, even the request's body, for another protocol.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            return data[stopped.args[0] :]
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, ApiError):  # raised by a method below
                raise error.__context__ from None
            raise
        except httptools.HttpParserError:
            raise bad_request("This is not a valid HTTP/1.1 request") from None
        return None

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Handle a request's first byte."""
        if self.phase is BETWEEN:
            self.phase = HEADERS
            self._receiver.request_began()
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._received = self._body_bytes = self._header_bytes = self._header_count = 0
        self._is_websocket = False
        self._unparsed = 0

    def on_url(self, url: bytes) -> None:
        """Handle a part of the request's target."""
        self._target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer, which is ignored."""
        self._header_count += 1
        self._count(len(name) + len(value))
        if self.phase is HEADERS:
            name = name.lower()
            if name == b"content-length":
                # Zeros may precede it without end (RFC 9110, section 8.6), and Python limits digits.
                value = value.strip(b" \t").lstrip(b"0") or b"0"
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Handle a request whose head is complete."""
        parser = self._parser
        version = parser.get_http_version()
        head = self._head = Head(parser.get_method(), self._target, version, self._headers)
        fault = fault_of(head)
        if fault is None and parser.should_upgrade():
            self._is_websocket = self._websockets and head.wants_websocket()
            fault = fault_of_handshake(head) if self._is_websocket else None
            if fault is None:
                return  # see _parse_to_upgrade
        if fault is not None:
            raise fault
        self.phase = BODY
        self._received = 0
        keep_alive = version != "1.0" and parser.should_keep_alive()
        if keep_alive:  # without, the parser has to ignore what follows
            self._unparsed = _length_of_large(head)
        self._receiver.request_head(head, keep_alive=keep_alive)

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body."""
        self._body_bytes += len(body)
        if self._unparsed:
            self._unparsed -= len(body)
        self._receiver.request_body(body)

    def on_message_complete(self) -> None:
        """Handle the request's last byte."""
        if not self._parser.should_upgrade():
            self._end_request()

    def _end_request(self) -> None:
        self.phase = BETWEEN
        # An empty line may follow a body; it is ignored (RFC 9112, section 2.2).
        self._received = 0
        self._receiver.request_ended()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        limits = self._limits
        if self._header_bytes > limits.max_header_bytes or self._header_count > limits.max_headers:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(
            431,
            f"The request's headers are more than {self._limits.max_headers} (--max-headers), or have "
            f"more than {self._limits.max_header_bytes} bytes (--max-header-bytes)",
            code="headers_too_large",
        )


def _length_of_large(head: Head) -> int:
    """Return the length of a body that is large and not sent in chunks; 0 for others."""
    lengths = head.all(b"content-length")
    if len(lengths) != 1 or head.all(b"transfer-encoding"):
        return 0
    length = int(lengths[0])  # the parser has checked it
    return length if length >= _LARGE_BODY else 0


def _new_parser(reader: RequestReader) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(reader)
    # A request behind one with "Connection: close" is ignored; the one before is answered.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
