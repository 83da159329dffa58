"""Blocks from a peer: one request, "these blocks, in this order", and one answer.

    Fetch (msgpack)   ->
                      <-  "B" block in the form of block_form.py     for each, up to the first missing
                      <-  "E"                                        the end
                      <-  "R" reason                                 instead of all this: refused

On one host, blocks are in memory that both can read (``shared_blocks.py``), some at a time:

                      <-  "S" where
    "N"               ->                                             read; "T": it cannot be, send them

Frames are those of :mod:`galley.links.handshake`, so both sides have the same token, and nobody between
them changes a frame. That a block is what was wanted does not depend on the peer either: it is checked
against the preamble that is expected. Whatever is wrong or late is a miss.
"""

import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Annotated, Final, Protocol

import msgspec

from galley.engine.block_form import Block, BlockForm
from galley.engine.shared_blocks import host_identity, open_shared
from galley.links.access import Access
from galley.links.handshake import BadFrame
from galley.links.sockets import SealedSocket, connect
from galley.ops.executor import Bytes
from galley.types.transfers import MOST_BLOCKS, KVPeer

log: Final = logging.getLogger("galley.transfers")

MOST_FETCH_BYTES: Final = MOST_BLOCKS * 24
"""Maximum size of a request."""

BLOCK, END, REFUSED, SHARED = b"B", b"E", b"R", b"S"
NEXT, SEND = b"N", b"T"

_REASON_BYTES: Final = 1024
_CONNECT_SECONDS: Final = 1.0
_AVOID_SECONDS: Final = 5.0
"""Seconds for which a peer that cannot be reached is not tried again."""


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """A request for blocks.

    Attributes:
        model: digest of the model, see :class:`BlockForm`.
        root: the hash with which the chain of the blocks begins.
        keys: keys of the blocks, in order.
        groups: the KV group of each.
        host: see :func:`host_identity`; on the same one, blocks are shared and not sent.
    """

    model: Annotated[str, msgspec.Meta(max_length=128)]
    root: Annotated[bytes, msgspec.Meta(max_length=64)]
    keys: Annotated[
        list[Annotated[bytes, msgspec.Meta(min_length=16, max_length=17)]],
        msgspec.Meta(max_length=MOST_BLOCKS),
    ]
    groups: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=255)]], msgspec.Meta(max_length=MOST_BLOCKS)
    ]
    host: Annotated[str, msgspec.Meta(max_length=256)] = ""

    @classmethod
    def of(cls, model: str, blocks: Sequence[Block]) -> "Fetch":
        """Return the request for these blocks, at least one, of one chain."""
        roots = {block.root for block in blocks}
        assert len(roots) == 1
        keys, groups = [b.key for b in blocks], [b.group for b in blocks]
        return cls(model, roots.pop(), keys, groups, host_identity())

    @property
    def blocks(self) -> list[Block]:
        """The blocks. Raises BadFrame if there is not one group for each key."""
        if len(self.keys) != len(self.groups):
            raise BadFrame("a request for blocks has different numbers of groups and of keys")
        return [
            Block(key, group, self.root) for key, group in zip(self.keys, self.groups, strict=True)
        ]


class TransferFailed(Exception):
    """Blocks did not arrive, for a reason other than that the peer does not have them."""


class BlockTransport(Protocol):
    """How blocks come from a peer.

    A transport over other hardware is another class with this method, such as one over NIXL: it would have
    the peer's agent write blocks in the same form into registered memory, and yield them from there.
    """

    def fetch(
        self, peer: KVPeer, blocks: Sequence[Block], deadline: float
    ) -> Generator[Bytes, None, None]:
        """Yield the keys and values of blocks, in order, up to the first that the peer does not have.

        Called on several threads.

        Args:
            peer: where the blocks are.
            blocks: the blocks, all of one chain.
            deadline: time on the monotonic clock by which they have to be there.

        Raises:
            TransferFailed: the rest does not arrive, in time and intact.
        """


class SocketTransport:
    """Fetches blocks over TCP, with TLS if there are certificates.

    Args:
        form: the form of the model's blocks.
        access: the token and the certificates.
    """

    def __init__(self, form: BlockForm, access: Access) -> None:
        self._form = form
        self._access = access
        self._lock = threading.Lock()
        self._avoided: dict[tuple[str, int], float] = {}
        """Address of a peer that could not be reached -> when it may be tried again."""

    def fetch(
        self, peer: KVPeer, blocks: Sequence[Block], deadline: float
    ) -> Generator[Bytes, None, None]:
        """See :class:`BlockTransport`."""
        try:
            yield from self._fetch(peer, blocks, deadline)
        except TimeoutError as error:
            raise TransferFailed(f"{peer.host}:{peer.port} is late") from error
        except OSError as error:
            raise TransferFailed(f"{peer.host}:{peer.port}: {error.strerror or error}") from error
        except ValueError as error:  # SettingsError: the token; also addresses that no socket takes
            raise TransferFailed(f"{peer.host}:{peer.port}: {error}") from error

    def _fetch(self, peer: KVPeer, blocks: Sequence[Block], deadline: float) -> Iterator[Bytes]:
        address = (peer.host, peer.port)
        with self._lock:
            if self._avoided.get(address, 0.0) > time.monotonic():
                raise ConnectionRefusedError("could not be reached a moment ago")
        if deadline <= time.monotonic():
            # All threads were busy, which says nothing about this peer.
            raise TransferFailed(
                f"{peer.host}:{peer.port} was not tried: other transfers took too long"
            )
        try:
            link = connect(*address, self._access, deadline, within=_CONNECT_SECONDS)
        except (OSError, ValueError):
            self._avoid(address)
            raise
        with link:
            link.send(msgspec.msgpack.encode(Fetch.of(self._form.model, blocks)))
            got = 0
            while got < len(blocks):
                frame = link.receive(max(_REASON_BYTES, 1 + self._form.size(blocks[got])))
                if frame[:1] == REFUSED:
                    raise TransferFailed(f"{peer.host}:{peer.port} refuses: {_reason(frame)}")
                if frame[:1] == BLOCK:
                    yield self._checked(blocks[got], memoryview(frame)[1:])
                    got += 1
                elif frame[:1] == SHARED:
                    for data in self._shared(link, frame[1:], blocks[got:]):
                        yield data
                        got += 1
                else:
                    return
            link.receive(1)

    def _checked(self, block: Block, found: "bytearray | memoryview") -> Bytes:
        data = self._form.content(block, found)
        if data is None:
            raise BadFrame("a block is damaged, or not the one that was requested")
        return data

    def _shared(
        self, link: SealedSocket, place: bytearray, blocks: Sequence[Block]
    ) -> Iterator[Bytes]:
        """Yield the blocks that a peer on this host shares; none if they cannot be read."""
        try:
            shared = open_shared(place, [self._form.size(block) for block in blocks])
        except BadFrame:
            raise
        except OSError:
            link.send(SEND)
            return
        for block, found in zip(blocks, shared, strict=False):
            yield self._checked(block, found)
        link.send(NEXT)

    def _avoid(self, address: tuple[str, int]) -> None:
        now = time.monotonic()
        with self._lock:
            self._avoided = {one: until for one, until in self._avoided.items() if until > now}
            self._avoided[address] = now + _AVOID_SECONDS


def _reason(frame: bytearray) -> str:
    return "".join(c for c in frame[1:].decode(errors="replace") if c.isprintable())
