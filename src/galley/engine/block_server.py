"""Sends blocks to peers: a thread that accepts connections, and one for each of them."""

import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec

from galley.engine.block_form import Block, BlockForm
from galley.engine.block_offers import BlockOffers
from galley.engine.block_transport import (
    BLOCK,
    END,
    MOST_FETCH_BYTES,
    NEXT,
    REFUSED,
    SHARED,
    Fetch,
)
from galley.engine.prefix_files import PrefixFiles
from galley.engine.shared_blocks import SHARED_BYTES, SharedBlocks, host_identity
from galley.errors import GalleyError
from galley.links.access import Access
from galley.links.handshake import BadFrame
from galley.links.sockets import SealedSocket, accepted, hang_up, listening
from galley.links.strangers import Strangers
from galley.ops.executor import BlockAccess, Bytes
from galley.rare_warnings import RareWarnings

MOST_CONNECTIONS: Final = 32
"""Maximum number of peers that are served, and of those that shake hands, at the same time."""

SEND_SECONDS: Final = 30.0
"""Time limit for a request and its answer; blocks are held no longer than that."""


class BlockServer:
    """Offers an engine's blocks, those on disk included, at an address.

    Args:
        access: the token and the certificates.
        form: the form of the model's blocks.
        blocks: copies blocks from the executor's memory.
        offers: holds them meanwhile.
        files: blocks on disk, if there are any.
    """

    def __init__(
        self,
        access: Access,
        form: BlockForm,
        blocks: BlockAccess,
        offers: BlockOffers,
        files: PrefixFiles | None,
    ) -> None:
        self._access = access
        self._form = form
        self._blocks = blocks
        self._offers = offers
        self._files = files
        self._warnings = RareWarnings("galley.transfers")
        self._lock = threading.Lock()
        self._open: dict[socket.socket, Callable[[], None]] = {}
        """Connection -> hangs up on the peer."""
        self._strangers = Strangers(MOST_CONNECTIONS)
        self._listener: socket.socket | None = None
        self._closed = False
        self._sent_blocks = self._sent_bytes = self._failures = 0

    def listen(self, host: str, port: int) -> int:
        """Accept peers from now on; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        self._listener = listening(host, port)
        threading.Thread(
            target=self._accept, args=(self._listener,), daemon=True, name="galley-block-server"
        ).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Accept no more peers, and hang up on those that there are."""
        with self._lock:
            self._closed = True
            self._strangers.close()
            for hang_up_on_peer in self._open.values():
                hang_up_on_peer()
        if self._listener is not None:
            hang_up(self._listener)  # wakes the thread that accepts, which closing does not
            self._listener.close()

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of what was sent, by field of :class:`EngineStats`."""
        return {
            "kv_sent_blocks": self._sent_blocks,
            "kv_sent_bytes": self._sent_bytes,
            "kv_send_failures": self._failures,
        }

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # such as out of descriptors, which passes
                continue
            try:
                self._strangers.greet(raw, self._serve, "galley-block-sender")
            except (OSError, RuntimeError) as error:  # too many threads or files, which passes
                self._warnings.add(f"blocks were not sent: {error}")

    def _begin(self, raw: socket.socket, link: SealedSocket) -> bool:
        """Give a peer a place; return whether there was one, or it is too late for it."""
        with self._lock:
            known = self._strangers.remove(raw)
            if self._closed or not known:
                return False
            full = len(self._open) >= MOST_CONNECTIONS
            if not full:
                self._open[raw] = link.hang_up
        if full:
            self._warnings.add(f"more than {MOST_CONNECTIONS} peers fetch blocks at a time")
        return not full

    def _serve(self, raw: socket.socket) -> None:
        peer = "a peer"
        try:
            peer = str(raw.getpeername()[0])
            with accepted(raw, self._access) as link:
                if not self._begin(raw, link):
                    return
                link.deadline = time.monotonic() + SEND_SECONDS
                self._answer(link)
        except (OSError, GalleyError, msgspec.DecodeError, msgspec.ValidationError) as error:
            with self._lock:
                self._failures += 1
            self._warnings.add(f"{peer}: blocks were not sent: {error or type(error).__name__}")
        finally:
            self._strangers.remove(raw)
            with self._lock:
                self._open.pop(raw, None)
            raw.close()
            self._offers.wake()  # the counts are reported with the engine's

    def _answer(self, link: SealedSocket) -> None:
        wanted = msgspec.msgpack.decode(link.receive(MOST_FETCH_BYTES), type=Fetch)
        if wanted.model != self._form.model:
            link.send(
                REFUSED,
                b"it has another model, other settings of the model or another type of CPU: "
                b"keys and values would differ",
            )
            raise BadFrame("the peer has a different model, or computes it differently")
        blocks = wanted.blocks
        if any(block.group >= len(self._form.block_bytes) for block in blocks):
            raise BadFrame("the peer wants blocks of a group that does not exist")
        shared = wanted.host == host_identity() != ""
        taken = self._share(blocks, link) if shared else 0
        if taken is not None:
            self._send(blocks[taken:], link)
        link.send(END)

    def _send(self, blocks: Sequence[Block], link: SealedSocket) -> None:
        # Closed at once when the peer is gone: blocks are held meanwhile.
        with closing(self._found(blocks, link)) as found:
            for block, data in found:
                parts = self._form.parts(block, data)
                link.send(BLOCK, *parts)
                self._count(1, sum(map(len, parts)))

    def _share(self, blocks: Sequence[Block], link: SealedSocket) -> int | None:
        """Pass on blocks to a peer on this host.

        Returns:
            None; or, if the peer cannot read them, how many it has.
        """
        taken = 0
        with SharedBlocks() as memory, closing(self._found(blocks, link)) as found:
            for block, data in found:
                memory.put(self._form.parts(block, data))
                if memory.size >= SHARED_BYTES:
                    count = memory.count
                    if not self._passed(memory, link):
                        return taken
                    taken += count
            return None if not memory.count or self._passed(memory, link) else taken

    def _passed(self, memory: SharedBlocks, link: SealedSocket) -> bool:
        """Wait until the peer has read what is there; return False if it cannot."""
        link.send(SHARED, memory.place)
        if link.receive(1) != NEXT:
            return False
        self._count(memory.count, memory.size)
        memory.clear()
        return True

    def _count(self, blocks: int, size: int) -> None:
        with self._lock:
            self._sent_blocks += blocks
            self._sent_bytes += size

    def _found(
        self, blocks: Sequence[Block], link: SealedSocket
    ) -> Generator[tuple[Block, Bytes], None, None]:
        """Yield the first of these blocks that are in memory or on disk, in order."""
        at = 0
        while at < len(blocks):
            before = at
            left = max(0.001, link.deadline - time.monotonic())
            with self._offers.holding(blocks[at:], left) as held:
                for number in held:
                    yield blocks[at], self._blocks.read_block(number, blocks[at].group)
                    at += 1
            while at < len(blocks) and (data := self._on_disk(blocks[at])) is not None:
                yield blocks[at], data
                at += 1
            if at == before:
                return

    def _on_disk(self, block: Block) -> Bytes | None:
        # Not removed if it is another block's: the peer has chosen key and root, which may not match.
        return None if self._files is None else self._files.read(block, removes=False)
