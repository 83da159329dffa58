"""Admission of connections, their time limits, and the timer that ends those that take too long.

A connection is counted from the moment it is accepted, TLS handshake included. The total limit is such
that a new engine process, and a temporary file for each upload, always find a descriptor. At most
:data:`SURPLUS` connections beyond a limit are kept: they get 503, and answers to probes, so that an
orchestrator does not restart a server that is merely full.

One timer checks all connections (:meth:`FrontDoor._sweep`); requests have no timers.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from galley.errors import SettingsError
from galley.machine import MOST_OPEN_FILES
from galley.server.turns import Turns
from galley.settings.config import Settings

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger("galley.server")

SURPLUS: Final = 16
"""Connections beyond the limits that get a response; each further one replaces the oldest."""

NOT_READ: Final = "clients disconnected that did not read their answers"
"""An event for :meth:`FrontDoor.note`."""

_RESERVED_DESCRIPTORS: Final = 32
_DESCRIPTORS_PER_MODEL: Final = 16
_ACCEPTED_AT_ONCE: Final = 64
_ACCEPT_AGAIN_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 10.0

Connect = Callable[["Admission"], asyncio.BaseProtocol]


class Admission:
    """A connection's place among those counted.

    Attributes:
        address: the address it is counted by, in addition to the total.
        surplus: it is beyond a limit.
        abort: closes it at once, even during a handshake.
    """

    def __init__(self, door: "FrontDoor", address: str, *, surplus: bool) -> None:
        """Create the admission; called by :class:`FrontDoor` alone."""
        self.address = address
        self.surplus = surplus
        self.abort: Callable[[], object] = _nothing
        self._door = door
        self._left = False

    def leave(self) -> None:
        """Release the place, because the connection is closed. Idempotent."""
        if not self._left:
            self._left = True
            self._door._leave(self)
            # It refers to the connection, which refers to this: both would stay until a garbage collection.
            self.abort = _nothing


def _nothing() -> None:
    """Close nothing: the connection is closed, or has not begun."""


class Watched(Protocol):
    """A connection that the front door checks at intervals."""

    def check(self, now: float) -> None:
        """End the connection if the client is late; ``now`` is the loop's time."""

    def refuse_unfinished(self) -> None:
        """Refuse a request whose body is not complete, because the server drains."""

    def shut_down(self) -> None:
        """Close as soon as the response that is being sent is complete."""


class FrontDoor:
    """Accepts connections within the limits, and ends those that take too long.

    Attributes:
        settings: where the limits are.
        connections: those that are open, whatever their protocol.
        most: the total limit.
        turns: turns of the connections whose bytes cost much to read.
    """

    def __init__(self, settings: Settings, *, models: int, refused: Callable[[int], None]) -> None:
        """Create the front door; :meth:`open` begins to accept.

        Args:
            models: how many engine processes there are.
            refused: called with the status of each response that came from no route.

        Raises:
            SettingsError: fewer files may be open than the connections need.
        """
        self.settings = settings
        self.connections: set[Watched] = set()
        self.turns = Turns()
        self.refused = refused
        self.most = _most_connections(settings.max_connections, models)
        self._open = 0
        self._surplus: dict[Admission, None] = {}
        self._by_address: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._reported = 0.0
        self._handshakes: set[asyncio.Task[object]] = set()
        self._emptied = asyncio.Event()
        timeouts = (settings.header_timeout, settings.body_timeout, settings.send_timeout)
        self._interval = max(0.05, min(1.0, min(timeouts) / 4))

    def open(
        self, listener: socket.socket, connect: Connect, tls: ssl.SSLContext | None = None
    ) -> None:
        """Begin to accept; ``connect`` makes the protocol of each connection."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connect = connect
        self._tls = tls
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)
        self._timer = self._loop.call_later(self._interval, self._sweep)

    def renew(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for the connections that are accepted from now on."""
        self._tls = tls

    async def close(self, seconds: float) -> None:
        """Stop accepting, and close the connections, which have this many seconds for their output."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self.connections):
            connection.shut_down()
        if self.connections:
            self._emptied.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), seconds)
        self._timer.cancel()

    def add(self, connection: Watched) -> None:
        """Check ``connection`` at intervals from now on."""
        self.connections.add(connection)

    def remove(self, connection: Watched) -> None:
        """Check ``connection`` no more: it is closed, or another protocol has taken it over."""
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    def drain(self) -> None:
        """Refuse the requests whose bodies are not complete: they may never be."""
        for connection in list(self.connections):
            connection.refuse_unfinished()

    def note(self, event: str) -> None:
        """Count an event that is logged, every few seconds at most."""
        self._events[event] += 1

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # asyncio would retry as often as the backlog is long, and log each time.
                self.note(f"accept failed: {error.strerror}")
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._resume)
                return
            self._admit(client, _address(peer[0]))

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _admit(self, client: socket.socket, address: str) -> None:
        surplus = self._open >= self.most or self._by_address[address] >= self._most_of(address)
        admission = Admission(self, address, surplus=surplus)
        if surplus:
            self.note("connections beyond the limit")
            if len(self._surplus) >= SURPLUS:
                self._make_room()
            self._surplus[admission] = None
        else:
            self._open += 1
            self._by_address[address] += 1
        client.setblocking(False)
        task = self._loop.create_task(self._handshake(client, admission))

        def abort() -> None:
            task.cancel()  # has not begun, or would have replaced this one
            client.close()

        admission.abort = abort
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _make_room(self) -> None:
        """End the oldest connection beyond the limits: a probe has been answered by then."""
        oldest = next(iter(self._surplus))
        oldest.abort()
        oldest.leave()

    async def _handshake(self, client: socket.socket, admission: Admission) -> None:
        seconds = self.settings.header_timeout if self._tls else None
        task = asyncio.current_task()
        assert task is not None
        admission.abort = task.cancel
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._connect(admission),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError:  # not TLS, no common protocol version, or gone
            admission.leave()
        except BaseException:
            admission.leave()
            client.close()
            raise

    def _most_of(self, address: str) -> int:
        if self.settings.max_connections_per_address is not None:
            return self.settings.max_connections_per_address
        loopback = ipaddress.ip_address(address.partition("/")[0]).is_loopback
        return self.most if loopback else max(1, self.most // 2)

    def _leave(self, admission: Admission) -> None:
        if admission.surplus:
            del self._surplus[admission]
            return
        self._open -= 1
        self._by_address[admission.address] -= 1
        if not self._by_address[admission.address]:
            del self._by_address[admission.address]

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self.connections):
            connection.check(now)
        if self._events and time.monotonic() - self._reported > _REPORT_SECONDS:
            counts = (f"{what} ({count})" for what, count in self._events.items())
            log.warning("%d connections open of %d: %s", self._open, self.most, ", ".join(counts))
            self._events.clear()
            self._reported = time.monotonic()
        self._timer = self._loop.call_later(self._interval, self._sweep)


def _most_connections(wanted: int | None, models: int) -> int:
    files = MOST_OPEN_FILES
    if resource is not None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = files if soft == resource.RLIM_INFINITY else soft
    reserved = _RESERVED_DESCRIPTORS + _DESCRIPTORS_PER_MODEL * models + SURPLUS
    # Two per connection, because a large upload is a file while it is read.
    most = (files - reserved) // 2
    if most < (wanted or 1):
        raise SettingsError(
            f"the limit of open files is {files} (ulimit -n), but {wanted or 1} connections need "
            f"{reserved + 2 * (wanted or 1)}; raise the limit"
            + (" or lower max_connections" if wanted else "")
        )
    return wanted or most


def _address(host: str) -> str:
    """Return the key by which connections are counted: an IPv4 address, or an IPv6 address's /64."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return "::1"
    return str(ipaddress.IPv6Network((address, 64), strict=False))
