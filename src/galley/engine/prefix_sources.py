"""Where blocks that are not in memory may be: in files, or at a peer.

The engine's thread looks whether a source may have something; threads of the source read it.
"""

import logging
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Protocol

from galley.engine.block_form import Block
from galley.engine.block_transport import BlockTransport, TransferFailed
from galley.engine.kv import block_key
from galley.engine.prefix_files import PrefixFiles
from galley.engine.sequence import Sequence as EngineSequence
from galley.ops.executor import Bytes
from galley.rare_warnings import RareWarnings
from galley.types import BLOCK_TOKENS
from galley.types.transfers import KVPeer

_READERS: Final = 2
"""Threads that read files, so that a short prefix does not wait for a long one."""

_FETCHERS: Final = 8
"""Threads that fetch from peers, so that a slow one does not delay others."""

log: Final = logging.getLogger("galley.transfers")


class Reading(Protocol):
    """Blocks of one sequence that a source may have."""

    def count(self) -> int:
        """Return how many of the hashes, from the first one on, have blocks in all groups, at most."""

    def read(self, blocks: Sequence[Block]) -> Generator[Bytes, None, None]:
        """Yield the contents of blocks in order, up to the first that is not there."""


@dataclass
class Taken:
    """Counts of blocks that came from a source, kept by the engine's thread."""

    hit_tokens: int = 0
    blocks: int = 0
    bytes: int = 0


class BlockSource(Protocol):
    """Somewhere that blocks may be.

    Attributes:
        threads: the threads on which a :class:`Reading` is used.
        taken: what came from it so far.
    """

    threads: ThreadPoolExecutor
    taken: Taken

    def look(self, sequence: EngineSequence, hashes: Sequence[bytes], first: int) -> Reading | None:
        """Return what there may be for a sequence beyond the first blocks; None: certainly nothing.

        Args:
            sequence: the sequence.
            hashes: the hashes of its blocks.
            first: number of them that are in memory.
        """


class FileSource:
    """Blocks on disk, in ``files``; ``groups``: number of KV groups."""

    def __init__(self, files: PrefixFiles, groups: int) -> None:
        self.threads = ThreadPoolExecutor(_READERS, thread_name_prefix="galley-prefix-reader")
        self.taken = Taken()
        self.files = files
        self._groups = range(groups)

    def look(self, sequence: EngineSequence, hashes: Sequence[bytes], first: int) -> Reading | None:
        """See :class:`BlockSource`."""
        return _Files(self, hashes[first:]) if self.has(hashes[first]) else None

    def has(self, link: bytes) -> bool:
        """Return whether a hash has files in all groups."""
        return all(self.files.exists(block_key(link, g)) for g in self._groups)

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of what was read, by field of :class:`EngineStats`."""
        return {
            "prefix_disk_hit_tokens": self.taken.hit_tokens,
            "prefix_disk_read_bytes": self.taken.bytes,
            "prefix_disk_damaged_files": self.files.damaged,
            "prefix_disk_bytes": self.files.bytes,
        }


class _Files:
    """The files of one sequence's blocks; see :class:`Reading`."""

    def __init__(self, source: FileSource, hashes: Sequence[bytes]) -> None:
        self._source = source
        self._hashes = hashes

    def count(self) -> int:
        missing = (i for i, link in enumerate(self._hashes) if not self._source.has(link))
        return next(missing, len(self._hashes))

    def read(self, blocks: Sequence[Block]) -> Generator[Bytes, None, None]:
        files = self._source.files
        for block in blocks:
            try:
                data = files.read(block)
            except OSError as error:
                log.warning("%s cannot be read: %s", files.path(block.key), error)
                return
            if data is None:
                return
            yield data


class PeerSource:
    """Blocks of the peer that a request names.

    Args:
        transport: how they come.
        seconds: time within which those of a sequence have to arrive.
    """

    def __init__(self, transport: BlockTransport, seconds: float) -> None:
        self.threads = ThreadPoolExecutor(_FETCHERS, thread_name_prefix="galley-block-fetcher")
        self.taken = Taken()
        self._fetches = self._failures = self._missing = 0
        self._seconds = 0.0
        self._transport = transport
        self._limit = seconds
        self._lock = threading.Lock()
        self._warnings = RareWarnings("galley.transfers")

    def look(self, sequence: EngineSequence, hashes: Sequence[bytes], first: int) -> Reading | None:
        """See :class:`BlockSource`."""
        peer = sequence.request.kv_from
        if peer is None:
            return None
        count = min(len(hashes), peer.tokens // BLOCK_TOKENS) - first
        return None if count <= 0 else _AtPeer(self, peer, count, time.monotonic() + self._limit)

    def fetch(
        self, peer: KVPeer, blocks: Sequence[Block], deadline: float
    ) -> Generator[Bytes, None, None]:
        """Yield blocks as :meth:`BlockTransport.fetch` does, and count; a failure is the end."""
        began, missing, failed = time.monotonic(), len(blocks), False
        try:
            with closing(self._transport.fetch(peer, blocks, deadline)) as contents:
                for data in contents:
                    missing -= 1
                    yield data
            with self._lock:
                self._missing += missing
        except Exception as error:
            failed = True
            if not isinstance(error, TransferFailed):
                log.exception("a transfer failed unexpectedly")
            self._warnings.add(f"{error}; missing blocks are computed")
        finally:
            with self._lock:
                self._fetches += 1
                self._failures += failed
                self._seconds += time.monotonic() - began

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of what was fetched, by field of :class:`EngineStats`."""
        return {
            "kv_peer_hit_tokens": self.taken.hit_tokens,
            "kv_fetches": self._fetches,
            "kv_fetch_failures": self._failures,
            "kv_fetch_seconds": self._seconds,
            "kv_fetched_blocks": self.taken.blocks,
            "kv_fetched_bytes": self.taken.bytes,
            "kv_missing_blocks": self._missing,
        }


class _AtPeer:
    """The blocks of one sequence at a peer; see :class:`Reading`."""

    def __init__(self, source: PeerSource, peer: KVPeer, count: int, deadline: float) -> None:
        self._source = source
        self._peer = peer
        self._count = count
        self._deadline = deadline

    def count(self) -> int:
        return self._count

    def read(self, blocks: Sequence[Block]) -> Generator[Bytes, None, None]:
        return self._source.fetch(self._peer, blocks, self._deadline)
