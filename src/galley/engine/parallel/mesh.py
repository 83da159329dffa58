"""Connections over which ranks on different machines exchange rows: one for each pair.

The rank with the lower number connects, and a rank to which others connect listens (``elsewhere.py``).
"""

import logging
import secrets
import select
import ssl
import time
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from galley.errors import EngineFailed, SettingsError
from galley.links.access import Access
from galley.links.duplex import Duplex
from galley.links.owner import NOBODY, OWNER_BYTES
from galley.links.sockets import SealedSocket, connect
from galley.ops.communicator import Communicator
from galley.settings.values import address_text

log = logging.getLogger("galley.rank")

START_SECONDS: Final = 120.0
"""Seconds to wait for a rank on another machine, which may still be starting or serving an ended engine."""

_ATTEMPT_SECONDS: Final = 15.0
_PAUSE_SECONDS: Final = 0.2

_SPIN_SECONDS: Final = 1e-4
"""How long a rank looks for rows of others before it sleeps: about as long as a packet travels."""

_NAP_SECONDS: Final = 0.05
"""The longest it sleeps before it checks whether a rank on its own machine has failed."""

SESSION_BYTES: Final = 16

JOIN_BYTES: Final = 1024
"""Maximum size of a :class:`Join`."""


class Join(msgspec.Struct, frozen=True):
    """The first frame of a connection to a rank.

    Attributes:
        session: identifies the group of ranks.
        rank: the one that has connected.
        rows: whether rows will be exchanged; otherwise rank 0 will send its frames.
        owner: of rank 0, the server that it belongs to, see :mod:`galley.links.owner`.
    """

    session: Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
    rank: int
    rows: bool
    owner: Annotated[bytes, msgspec.Meta(min_length=OWNER_BYTES, max_length=OWNER_BYTES)] = NOBODY


def new_session() -> bytes:
    """Return a new identifier of a group of ranks."""
    return secrets.token_bytes(SESSION_BYTES)


def join(address: tuple[str, int], access: Access, what: Join, deadline: float) -> SealedSocket:
    """Connect to a rank, and wait until it has taken the connection.

    A rank that has just ended is there again soon, and one that serves another server's group takes none.

    Raises:
        SettingsError: it refuses, or does not have the token.
        EngineFailed: it cannot be reached in time.
    """
    host, port = address
    where, reason = address_text(host, port), ""
    while time.monotonic() < deadline:
        until = min(deadline, time.monotonic() + _ATTEMPT_SECONDS)
        try:
            made = connect(host, port, access, until, within=_ATTEMPT_SECONDS)
            try:
                made.send(msgspec.msgpack.encode(what))
                made.receive(JOIN_BYTES)
            except BaseException:
                made.close()
                raise
            return made
        except OSError as error:
            ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            if isinstance(error, ssl.SSLError) and not ended:
                raise SettingsError(f"the rank at {where}: {error}") from None
            if not reason:
                log.warning("waiting for the rank at %s: %s", where, error or type(error).__name__)
            reason = str(error) or type(error).__name__
            time.sleep(_PAUSE_SECONDS)
    raise EngineFailed(
        f"the rank at {where} cannot be reached: {reason or 'there is no time left'}; start galley rank "
        "there, and if it runs, see that no other engine uses it"
    )


class Mesh:
    """Fills the slots of ranks on other machines.

    Args:
        memory: the memory of the communicator.
        shared: the communicator, which reaches them through this from now on.
        slot_bytes: bytes of a slot.
        connections: rank -> connection to it.
    """

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        shared: Communicator,
        slot_bytes: int,
        connections: Mapping[int, SealedSocket],
    ) -> None:
        def slots(of: int) -> list[memoryview]:
            starts = (shared.slot_at(shared.ranks, slot_bytes, of, parity) for parity in (0, 1))
            return [memory[at : at + slot_bytes].data for at in starts]

        self._own = slots(shared.rank)
        self._slots = {other: slots(other) for other in connections}
        self._links = {other: Duplex(one, slot_bytes) for other, one in connections.items()}
        self._missing: set[int] = set()
        self._unsent: set[int] = set()
        shared.reach(list(connections), self._carry)

    def _carry(self, parity: int, count: int) -> bool | None:
        try:
            if not self._missing and not self._unsent:
                for link in self._links.values():
                    link.put(self._own[parity][:count])
                self._missing, self._unsent = set(self._links), set(self._links)
            return self._continue(parity)
        except OSError:
            return None

    def _continue(self, parity: int) -> bool:
        """Go on with a chunk until it is done or the nap is over; return whether it is done."""
        until = time.perf_counter() + _SPIN_SECONDS
        while True:
            self._advance(parity)
            if not self._missing and not self._unsent:
                return True
            if time.perf_counter() >= until and not self._wait():
                return False

    def _advance(self, parity: int) -> None:
        for rank in list(self._unsent):
            if self._links[rank].flush():
                self._unsent.discard(rank)
        for rank in list(self._missing):
            body = self._links[rank].take()
            if body is not None:
                self._slots[rank][parity][: len(body)] = body
                self._missing.discard(rank)

    def _wait(self) -> bool:
        """Wait until a connection can go on; return whether one can."""
        poll = select.poll()
        for rank in self._missing | self._unsent:
            events = (select.POLLIN if rank in self._missing else 0) | (
                select.POLLOUT if rank in self._unsent else 0
            )
            poll.register(self._links[rank].fileno(), events)
        return bool(poll.poll(1000 * _NAP_SECONDS))

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()


def connect_mesh(
    session: bytes,
    rank: int,
    elsewhere: Mapping[int, tuple[str, int]],
    access: Access,
    deadline: float,
) -> dict[int, SealedSocket]:
    """Connect to the ranks on other machines with higher numbers; see :func:`join` for errors."""
    found: dict[int, SealedSocket] = {}
    try:
        for other, address in elsewhere.items():
            if other > rank:
                found[other] = join(address, access, Join(session, rank, rows=True), deadline)
    except BaseException:
        for one in found.values():
            one.close()
        raise
    return found
