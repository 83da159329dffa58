"""A rank on a different machine from rank 0: it waits for its group, and is then a rank like the others.

``service/rank_host.py`` has its process, which serves one group. Once the group is complete, another
process waits for the next group of the same server, or of any once this one has ended.
"""

import dataclasses
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from galley.engine.parallel.contents import Contents
from galley.engine.parallel.frames import Begin, Channel, Failed
from galley.engine.parallel.mesh import JOIN_BYTES, START_SECONDS, Join, Mesh, connect_mesh
from galley.engine.parallel.rank import Group, kind_of, serve_group
from galley.errors import EngineFailed, GalleyError, ModelError, SettingsError
from galley.formats.model_files import samples_digest
from galley.links.access import Access
from galley.links.duplex import SealedStream
from galley.links.sockets import SealedSocket, accepted
from galley.links.strangers import Strangers
from galley.ops.communicator import communicator, mapped_memory
from galley.rare_warnings import RareWarnings

log = logging.getLogger("galley.rank")

_MOST_HANDSHAKES: Final = 64
"""Maximum connections that shake hands at the same time; each further one replaces the oldest."""

_MOST_WAITING: Final = 64
"""Maximum connections of ranks that are kept until rank 0 has said who belongs to the group; each further
one replaces the oldest."""

_PAUSE_SECONDS: Final = 0.05
"""Pause after a connection that could not be accepted."""


@dataclass(frozen=True)
class RankPlace:
    """What a rank's own machine decides.

    Attributes:
        locate: returns the folder of the checkpoint there; a hub id may have another one by now.
        model: its name for messages.
        threads: compute threads.
        weight_cache: whether packed weights are kept.
    """

    locate: Callable[[], Path]
    model: str
    threads: int
    weight_cache: bool

    def begin(self, begin: Begin) -> Begin:
        """Return the first frame with what this machine decides.

        Raises:
            ModelError, SettingsError: the checkpoint is not there, or the engine's settings do not fit.
        """
        settings = dataclasses.replace(
            begin.settings,
            model=self.model,
            threads=self.threads,
            weight_cache=self.weight_cache,
        )
        return msgspec.structs.replace(begin, settings=settings, folder=str(self.locate()))


class Turn(Protocol):
    """How a process takes its turn among those that compute for a rank."""

    def admits(self, owner: bytes) -> bool:
        """Return whether an engine of this server may use the rank now."""

    def begin(self, owner: bytes) -> None:
        """Have another process wait for the next group: this one has its own, of that server."""


class Reception:
    """Takes the connections of a group's ranks, each on a thread until its handshake is done.

    Args:
        listener: a listening socket, which other processes may have, too.
        access: the token and the certificates.
        admits: returns whether an engine of a server may use this rank.
    """

    def __init__(
        self,
        listener: socket.socket,
        access: Access,
        admits: Callable[[bytes], bool] = lambda owner: True,
    ) -> None:
        self._listener = listener
        self._access = access
        self._admits = admits
        self._strangers = Strangers(_MOST_HANDSHAKES)
        self._warnings = RareWarnings("galley.rank")
        self._leader: queue.SimpleQueue[tuple[Join, SealedSocket]] = queue.SimpleQueue()
        self._session: bytes | None = None
        self._rows: dict[tuple[bytes, int], SealedSocket] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._awake, self._wake = socket.socketpair()
        # Another process may take a connection first.
        listener.setblocking(False)
        self._accepting = threading.Thread(target=self._accept, daemon=True, name="galley-ranks")
        self._accepting.start()

    def leader(self) -> tuple[Join, SealedSocket]:
        """Wait for a group's rank 0, and return its first frame and its connection."""
        return self._leader.get()

    def lower_ranks(self, session: bytes, rank: int, deadline: float) -> dict[int, SealedSocket]:
        """Wait for the ranks of a group with lower numbers, and return their connections.

        Raises:
            EngineFailed: one has not connected by the deadline, on the monotonic clock.
        """
        wanted = {(session, other) for other in range(rank)}
        with self._changed:
            while missing := wanted - self._rows.keys():
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    names = ", ".join(str(other) for _, other in sorted(missing))
                    raise EngineFailed(f"rank {names} has not connected to rank {rank} in time")
            return {other: self._rows.pop((session, other)) for other in range(rank)}

    def close(self) -> None:
        """Accept no more connections here, and close those that are not of the group."""
        with self._changed:
            self._closed = True
            waiting, self._rows = list(self._rows.values()), {}
        for one in waiting:
            one.close()
        self._wake.close()
        self._accepting.join()
        self._awake.close()
        self._strangers.close()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                select.select([self._listener, self._awake], [], [])
                if self._closed:
                    break
                raw, _ = self._listener.accept()
                self._strangers.greet(raw, self._receive, "galley-rank-greeter")
            except BlockingIOError:
                continue  # it has gone again
            except (OSError, RuntimeError) as error:  # too many threads or files, which passes
                self._warnings.add(f"a connection was not accepted: {error}")
                time.sleep(_PAUSE_SECONDS)

    def _receive(self, raw: socket.socket) -> None:
        try:
            connection = accepted(raw, self._access)
            try:
                what = msgspec.msgpack.decode(connection.receive(JOIN_BYTES), type=Join)
                if self._strangers.remove(raw):
                    self._take(what, connection)
                else:
                    connection.close()
            except BaseException:
                connection.close()
                raise
        except (SettingsError, OSError, msgspec.DecodeError) as error:
            self._warnings.add(f"a connection was refused or ended: {error or 'no answer in time'}")
        finally:
            self._strangers.remove(raw)

    def _take(self, what: Join, connection: SealedSocket) -> None:
        """Confirm and keep a connection, or close it if this rank belongs to another group or server."""
        with self._changed:
            foreign = self._session is not None and (not what.rows or what.session != self._session)
            foreign = foreign or not (what.rows or self._admits(what.owner))
            if foreign or self._closed:
                connection.close()
                return
            connection.send(b"")
            if what.rows:
                if len(self._rows) >= _MOST_WAITING:  # of groups whose rank 0 never came
                    self._rows.pop(next(iter(self._rows))).close()
                self._rows[what.session, what.rank] = connection
                self._changed.notify_all()
            else:
                self._session = what.session
                self._leader.put((what, connection))


def serve_elsewhere(listener: socket.socket, access: Access, place: RankPlace, turn: Turn) -> None:
    """Wait for a group, and compute steps with it until rank 0 closes the connection or a rank fails.

    Args:
        listener: a listening socket; it is closed once the group is complete.
        access: the token and the certificates.
        place: what this machine decides.
        turn: whose groups this process may serve.
    """
    reception = Reception(listener, access, turn.admits)
    what, connection = reception.leader()
    stream = SealedStream(connection)
    channel = Channel(stream)
    received = channel.receive_at_rank()
    if not isinstance(received, Begin) or received.session != what.session:
        channel.close()
        return
    threading.Thread(target=_end_with, args=(stream,), daemon=True).start()
    try:
        begin = place.begin(received)
    except GalleyError as error:
        channel.send(Failed(kind_of(error), str(error)))
        channel.close()
        return
    log.info("rank %d of %d", begin.rank, begin.ranks)
    folder = Path(begin.folder)
    contents = Contents(folder)

    def meet() -> Group:
        if samples_digest(folder) != begin.samples:
            raise ModelError(
                f"{folder} on the machine of this rank is not the engine's checkpoint; all ranks need the "
                "same files"
            )
        group = _group_of(begin, reception, access)
        reception.close()
        turn.begin(what.owner)
        return group

    serve_group(channel, begin, meet, contents.digest)


def _end_with(leader: SealedStream) -> None:
    """End this process with the connection of rank 0, even while it loads or waits for other ranks.

    The next engine would otherwise find it occupied.
    """
    leader.wait_for_end()
    os._exit(0)


def _group_of(begin: Begin, reception: Reception, access: Access) -> Group:
    """Connect with all other ranks.

    Raises:
        SettingsError, EngineFailed: one cannot be reached, or has not connected.
    """
    deadline = time.monotonic() + START_SECONDS
    higher = connect_mesh(begin.session, begin.rank, begin.elsewhere, access, deadline)
    lower = reception.lower_ranks(begin.session, begin.rank, deadline)
    memory = mapped_memory(-1, begin.ranks, begin.slot_bytes)
    shared = communicator(memory, begin.rank, begin.ranks, begin.slot_bytes)
    return Group(shared, Mesh(memory, shared, begin.slot_bytes, {**lower, **higher}))
