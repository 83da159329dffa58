"""Blocks of prefixes that are not in memory: on disk, where they outlive the process, or at a peer.

    a step fills blocks  -------------------------------------->  files, peers   prefix_saver, block_offers
    a new request  <--blocks are registered--  reader threads  <--  files, peers   prefix_sources

A request whose next block may be somewhere waits while a reader fills blocks of the pool that no step
uses; then they are cached blocks like others, and the scheduler finds them. What is missing, damaged or
late is computed.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from galley.engine.block_form import Block
from galley.engine.block_offers import BlockOffers
from galley.engine.block_server import BlockServer
from galley.engine.kv import KVCache, block_key
from galley.engine.prefix_files import PrefixFiles
from galley.engine.prefix_saver import PrefixSaver
from galley.engine.prefix_sources import BlockSource, FileSource, PeerSource, Reading
from galley.engine.sequence import Sequence
from galley.ops.executor import BlockAccess
from galley.types import BLOCK_TOKENS

_CLOSE_SECONDS: Final = 0.7
"""Seconds in which the last blocks are written when the engine closes."""


@dataclass(eq=False)
class _Load:
    """A prefix on its way into memory.

    Attributes:
        sequence: the sequence that waits for it.
        hashes: hashes of the sequence's blocks that may be found.
        first: number of them that are in memory.
        source: number of the source among those of the tier.
        reading: what the source may have.
        work: what a reader does: count the blocks, then read them.
        held: blocks that are referenced meanwhile, first those in memory.
        targets: blocks of the pool to fill, and what with, in order.
        reads: whether the reader has begun to fill them.
        abandoned: whether the sequence was aborted.
    """

    sequence: Sequence
    hashes: list[bytes]
    first: int
    source: int
    reading: Reading
    work: "Future[int]"
    held: list[int] = field(default_factory=list)
    targets: list[tuple[Block, int]] = field(default_factory=list)
    reads: bool = False
    abandoned: bool = False


class PrefixTier:
    """Loads the blocks that a sequence could use, and passes on those that are computed.

    The engine's thread calls it, between two steps.

    Args:
        blocks: copies blocks to and from the executor's memory.
        kv: the KV cache, which reports to this object from now on.
        files: the blocks on disk, if there are any.
    """

    def __init__(self, blocks: BlockAccess, kv: KVCache, files: PrefixFiles | None = None) -> None:
        self.known: dict[bytes, Block] = {}
        """All blocks in memory, by key."""
        self.files = files
        self._blocks = blocks
        self._kv = kv
        self._groups = range(len(kv.groups))
        self._sources: list[BlockSource] = []
        self._files: FileSource | None = None
        self._saver: PrefixSaver | None = None
        self._peers: PeerSource | None = None
        self._offers: BlockOffers | None = None
        self._server: BlockServer | None = None
        if files is not None:
            self._saver = PrefixSaver(files, blocks, self.known)
            self._files = FileSource(files, len(kv.groups))
            self._sources.append(self._files)
        self._loads: list[_Load] = []
        self._behind: list[Sequence] = []
        """Sequences that wait for a prefix which another one's load brings."""
        self._coming: set[bytes] = set()
        kv.watch(self)

    def fetch_from(self, peers: PeerSource) -> None:
        """Fetch the blocks of requests that name a peer."""
        self._peers = peers
        self._sources.append(peers)

    def offer(self, offers: BlockOffers, server: BlockServer) -> None:
        """Send blocks to peers; ``server`` does, and ends with this object."""
        self._offers, self._server = offers, server

    # The KV cache reports what becomes of its blocks.

    def registered(self, key: bytes, block: int, group: int, root: bytes) -> None:
        """Take note of a block that is full once this step has run."""
        made = self.known[key] = Block(key, group, root)
        if self._saver is not None:
            self._saver.registered(made, block)

    def evicted(self, key: bytes, block: int) -> None:
        """Take note of a block whose memory is about to be reused."""
        known = self.known.pop(key)
        if self._saver is not None:
            self._saver.evicted(known, block)

    def kept(self, keys: Iterable[bytes], seconds: float) -> None:
        """Take note of blocks that are to be kept for so long."""
        if self._saver is not None:
            self._saver.kept(keys, seconds)

    def forgotten(self) -> None:
        """Take note that the content of all blocks in memory is lost."""
        self.known.clear()
        if self._saver is not None:
            self._saver.forgotten()

    @property
    def has_work(self) -> bool:
        """Whether blocks wait to be saved or sent, or loads to be finished."""
        saves = self._saver is not None and self._saver.has_work
        serves = self._offers is not None and self._offers.has_work
        return bool(self._loads) or saves or serves

    @property
    def holds(self) -> bool:
        """Whether blocks are held for sequences that wait for their prefixes, or for peers."""
        return bool(self._loads) or (self._offers is not None and self._offers.is_holding)

    def save(self) -> None:
        """Save blocks that the last steps have filled, as far as there is room."""
        if self._saver is not None:
            self._saver.save()

    # Loading.

    def load(self, sequence: Sequence) -> bool:
        """Begin to load what a new sequence could use; return whether it must wait for that."""
        return self._load_from(0, sequence)

    def _load_from(self, source: int, sequence: Sequence) -> bool:
        """Begin to load from the first source, of those from this number on, that may have something."""
        hashes, first = self._in_memory(sequence)
        if first >= len(hashes):
            return False
        if hashes[first] in self._coming:
            self._behind.append(sequence)
            return True
        for number in range(source, len(self._sources)):
            reading = self._sources[number].look(sequence, hashes, first)
            if reading is not None:
                self._coming.update(hashes[first:])
                work = self._sources[number].threads.submit(reading.count)
                self._loads.append(_Load(sequence, hashes, first, number, reading, work))
                return True
        return False

    def abort(self, sequence: Sequence) -> bool:
        """Drop a sequence that waits; return False if it does not."""
        if sequence in self._behind:
            self._behind.remove(sequence)
            return True
        for load in self._loads:
            if load.sequence is sequence and not load.abandoned:
                load.abandoned = True
                return True
        return False

    def ready(self, running: int) -> Iterator[Sequence]:
        """Yield the sequences that need not wait any longer; serve peers.

        Args:
            running: number of running sequences; blocks with which they can grow are left in the pool.
        """
        if self._offers is not None:
            self._offers.serve()
        done = [load for load in self._loads if load.work.done()]
        for load in done:
            if load.reads or load.abandoned or not self._begin_reading(load, running):
                self._finish(load)
                if not (load.abandoned or self._load_from(load.source + 1, load.sequence)):
                    yield load.sequence
        if done and self._behind:
            behind, self._behind = self._behind, []
            yield from [sequence for sequence in behind if not self.load(sequence)]

    def pause(self, seconds: float) -> None:
        """Sleep so long, or until there is something to do."""
        if self._loads:
            wait([load.work for load in self._loads], seconds, return_when=FIRST_COMPLETED)
        elif self._saver is not None:
            self._saver.writer.wait(seconds)

    def _in_memory(self, sequence: Sequence) -> tuple[list[bytes], int]:
        """Return the hashes of the blocks that the sequence could use, and how many are in memory."""
        reusable = sequence.task.reusable(sequence)
        return self._kv.lookup(sequence.id, sequence.tokens, root=sequence.root, reusable=reusable)

    def _begin_reading(self, load: _Load, running: int) -> bool:
        """Take blocks for what may be there and begin to fill them; return False if there are none."""
        pool = self._kv.pool
        _, first = self._in_memory(load.sequence)
        length = max(first, load.first + load.work.result())
        held = [
            block
            for link in load.hashes[:first]
            for g in self._groups
            if (block := pool.find(block_key(link, g))) is not None
        ]
        spare = running * len(self._groups)
        wanted = self._missing(load, length)
        while wanted and not pool.can_take(len(wanted) + spare, held):
            length -= max(1, (length - first) // 16)
            wanted = self._missing(load, length)
        if length <= first or not wanted or not pool.reserve(len(wanted), held):
            return False
        load.targets = [(block, pool.take()) for block in wanted]
        load.held = [*held, *(block for _, block in load.targets)]
        load.first, load.reads = first, True
        load.work = self._sources[load.source].threads.submit(self._read, load)
        return True

    def _missing(self, load: _Load, length: int) -> list[Block]:
        """Return the blocks of the first ``length`` that are needed and not in memory, in order."""
        begins = [group.first_block(length * BLOCK_TOKENS) for group in self._kv.groups]
        keys = (
            (block_key(load.hashes[i], g), g)
            for i in range(length)
            for g in self._groups
            if i >= begins[g]
        )
        return [
            Block(key, g, load.sequence.root) for key, g in keys if self._kv.pool.find(key) is None
        ]

    def _read(self, load: _Load) -> int:
        """Fill the blocks in order, up to the first that cannot be; return how many are filled."""
        count = 0
        with closing(load.reading.read([block for block, _ in load.targets])) as contents:
            for data in contents:
                if load.abandoned:
                    break
                block, target = load.targets[count]
                self._blocks.write_block(target, block.group, data)
                count += 1
        return count

    def _finish(self, load: _Load) -> None:
        """Register what was read, and release all blocks, the last ones of the prefix first."""
        taken = self._sources[load.source].taken
        self._loads.remove(load)
        self._coming.difference_update(load.hashes)
        pool = self._kv.pool
        filled = load.work.result() if load.reads else 0
        for block, target in load.targets[:filled]:
            taken.blocks += 1
            taken.bytes += self._blocks.block_bytes(block.group)
            if pool.find(block.key) is None:
                pool.register(block.key, target)
                self._note_read(load, block, target)
        for target in reversed(load.held):
            pool.release(target)
        if filled and not load.abandoned:
            found = self._in_memory(load.sequence)[1] - load.first
            taken.hit_tokens += max(0, found) * BLOCK_TOKENS

    def _note_read(self, load: _Load, block: Block, target: int) -> None:
        """Take note of a block that is in memory now; from a peer, it has yet to be saved."""
        self.known[block.key] = block
        if self._saver is None:
            return
        if self._sources[load.source] is self._peers:
            self._saver.registered(block, target)
        else:
            self._saver.read(block)

    def held(self) -> list[list[int]]:
        """Return the blocks that are held for loads and for peers."""
        loads = [load.held for load in self._loads]
        return loads if self._offers is None else [*loads, *self._offers.held()]

    @property
    def waiting(self) -> int:
        """The number of sequences that wait for their prefixes."""
        return len(self._behind) + sum(not load.abandoned for load in self._loads)

    @property
    def counts(self) -> dict[str, Any]:
        """The fields of :class:`EngineStats` that are known here alone."""
        counts: dict[str, Any] = {}
        if self._files is not None and self._saver is not None:
            counts |= self._files.counts | self._saver.counts
        if self._peers is not None:
            counts |= self._peers.counts
        return counts if self._server is None else counts | self._server.counts

    def close(self) -> None:
        """Write what is not on disk yet, in less than a second, and stop the threads."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        if self._server is not None:
            self._server.close()
        for load in self._loads:
            load.abandoned = True
        for source in self._sources:
            source.threads.shutdown(wait=False, cancel_futures=True)
        if self._saver is not None:
            self._saver.close(self._kv.pool.keys_by_use(), deadline)
