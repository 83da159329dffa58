"""Blocks between engines on one host: in memory that both can read, so that no block goes through a socket.

The engine that sends puts some blocks into a file without a name (``memfd``) and says which; the one that
fetches opens it through ``/proc``, which the kernel allows to the same user alone.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from galley.links.handshake import BadFrame

SHARED_BYTES: Final = 16 << 20
"""Bytes that are passed on at a time."""


@cache
def host_identity() -> str:
    """Return what two processes have in common that can read each other's memory; empty: unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    return ""


class SharedPlace(msgspec.Struct, frozen=True, array_like=True):
    """The file with blocks: descriptor ``file`` of process ``pid`` has ``count`` of them."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    file: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
    count: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class SharedBlocks:
    """The side that sends.

    Attributes:
        size, count: bytes and number of the blocks that are there.
    """

    def __init__(self) -> None:
        """Create the memory. Raises OSError if there is none."""
        self._file = os.memfd_create("galley-blocks", os.MFD_CLOEXEC)
        self.size = self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def put(self, parts: "Sequence[bytes | memoryview]") -> None:
        """Add a block in the form of :class:`galley.engine.block_form.BlockForm`."""
        for part in parts:
            done = 0
            while done < len(part):
                done += os.pwrite(self._file, part[done:], self.size + done)
            self.size += done
        self.count += 1

    @property
    def place(self) -> bytes:
        """Where the blocks are, to be sent."""
        return msgspec.msgpack.encode(SharedPlace(os.getpid(), self._file, self.count))

    def clear(self) -> None:
        """Remove the blocks, which have been read."""
        os.ftruncate(self._file, 0)
        self.size = self.count = 0


def open_shared(place: bytes | bytearray, sizes: Sequence[int]) -> "Iterator[bytearray]":
    """Open the memory of a peer, and return an iterator over the blocks there.

    Args:
        place: what the peer has sent.
        sizes: bytes of the blocks that were requested and have yet to come.

    Raises:
        BadFrame: there are not the blocks that were requested.
        OSError: this process may not read it.
    """
    try:
        where = msgspec.msgpack.decode(place, type=SharedPlace)
    except msgspec.DecodeError as error:
        raise BadFrame(str(error)) from error
    if where.count > len(sizes):
        raise BadFrame("the peer's memory has more blocks than were requested")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(f"/proc/{where.pid}/fd/{where.file}", flags)
    return _blocks_in(file, sizes[: where.count])


def _blocks_in(file: int, sizes: Sequence[int]) -> Iterator[bytearray]:
    with open(file, "rb", buffering=0) as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != sum(sizes):
            raise BadFrame("the peer's memory has something other than what was requested")
        for size in sizes:
            data = bytearray(size)
            if opened.readinto(data) != size:
                raise BadFrame("the peer removed blocks before they were read")
            yield data
