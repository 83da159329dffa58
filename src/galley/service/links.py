"""The connection to a running engine, and where a replica gets one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from galley.service.frames import FromEngine, ToEngine


class EngineLink(Protocol):
    """The connection to a running engine, such as :class:`galley.service.process.EngineProcess`."""

    frames_sent: int

    @property
    def pid(self) -> int | None:
        """The engine's process id, if it runs on this machine."""

    def send(self, frame: ToEngine) -> None:
        """Queue a frame. If the engine is gone, the frame is dropped and :meth:`frames` ends."""

    def frames(self) -> AsyncIterator[list[FromEngine]]:
        """Yield the frames until the connection ends, each time all that have arrived.

        Raises:
            GalleyError: the engine reports that it cannot start.
        """

    def kill(self) -> None:
        """End an engine that hangs, or the connection to it; :meth:`frames` then ends."""

    async def close(self) -> int:
        """End the engine, or the connection to it; return a process's exit status."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSource:
    """Where the engine of a replica comes from.

    Attributes:
        name: identifies the replica among those of the model: a number, or an address.
        connect: starts an engine, or connects to one.
        seats: sequences that run at the same time, before an engine has reported more.
        remote: whether it is reached over a network: lost connections are retried indefinitely, and no
            request is suspected of having caused them.
        has_others: whether there are further replicas, so that it need not give up.
        contents: digest of the checkpoint's files; empty if all replicas load the same ones.
        release: the release of the model that it serves; empty without releases.
    """

    name: str
    connect: Callable[[], Awaitable[EngineLink]]
    seats: int
    remote: bool = False
    has_others: bool = False
    contents: str = ""
    release: str = ""
