"""Keys and values on disk: blocks of prefixes outlive memory, the process, and serve other engines.

    a step fills blocks  --copy-->  queue  --writer thread-->  files     prefix_writer.py
    a new request  <--blocks are registered--  reader threads  <--  files     prefix_files.py

The engine's thread only copies: it never waits for the disk. A block is written soon after it is
computed, so little is lost when the process is killed. A request whose next block has a file waits while
a reader fills blocks of the pool that no step uses; then they are cached blocks like others, and the
scheduler finds them. What is missing or damaged is computed.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from galley.engine.kv import KVCache, block_key
from galley.engine.prefix_files import Block, PrefixFiles
from galley.engine.prefix_writer import PrefixWriter
from galley.engine.sequence import Sequence
from galley.ops.executor import BlockAccess
from galley.types import BLOCK_TOKENS

log: Final = logging.getLogger("galley.prefixes")

_READERS: Final = 2
"""Threads that read, so that a short prefix does not wait for a long one."""

_STEP_BYTES: Final = 16 << 20
"""Bytes that are copied to the queue after one step: some milliseconds."""

_CLOSE_SECONDS: Final = 0.7
"""Seconds in which the last blocks are written when the engine closes."""


class TierStats(NamedTuple):
    """Counts so far, the sequences ``waiting`` for the disk, and the ``bytes`` of the folder's files."""

    waiting: int = 0
    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    dropped_blocks: int = 0
    damaged_files: int = 0
    bytes: int = 0


@dataclass(eq=False)
class _Load:
    """A prefix on its way from disk.

    Attributes:
        sequence: the sequence that waits for it.
        hashes: hashes of the sequence's blocks that may be found.
        first: number of them that are in memory.
        held: blocks that are referenced meanwhile, first those in memory.
        targets: blocks of the pool to fill, and what with, in order.
        work: what a reader does: count the files, then read them.
        abandoned: whether the sequence was aborted.
    """

    sequence: Sequence
    hashes: list[bytes]
    first: int
    work: "Future[int]"
    held: list[int] = field(default_factory=list)
    targets: list[tuple[Block, int]] = field(default_factory=list)
    reads: bool = False
    abandoned: bool = False


class PrefixTier:
    """Saves the blocks that a KV cache registers, and loads those that a sequence could use.

    The engine's thread calls it, between two steps.

    Args:
        files: the files of this model.
        blocks: copies blocks to and from the executor's memory.
        kv: the KV cache, which reports to this object from now on.
    """

    def __init__(self, files: PrefixFiles, blocks: BlockAccess, kv: KVCache) -> None:
        self._files = files
        self._blocks = blocks
        self._kv = kv
        self._groups = range(len(kv.groups))
        self._sizes = [blocks.block_bytes(g) for g in self._groups]
        self._unsaved: dict[bytes, tuple[Block, int]] = {}
        """Registered blocks that are not queued yet, by key."""
        self._known: dict[bytes, Block] = {}
        """All blocks in memory, by key."""
        self._until: dict[bytes, float] = {}
        """Time until which blocks in memory are kept, by key, in seconds since 1970."""
        self._loads: list[_Load] = []
        self._behind: list[Sequence] = []
        """Sequences that wait for a prefix which another one's load brings."""
        self._coming: set[bytes] = set()
        self._hit_tokens = self._read_bytes = self._dropped = 0
        self._writer = PrefixWriter(files, lambda: self._known)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="galley-prefix-reader")
        kv.watch(self)

    # The KV cache reports what becomes of its blocks.

    def registered(self, key: bytes, block: int, group: int, root: bytes) -> None:
        """Take note of a block that is full once this step has run."""
        made = Block(key, group, root)
        self._known[key] = made
        self._unsaved[key] = made, block

    def evicted(self, key: bytes, block: int) -> None:
        """Save a block whose memory is about to be reused, if it is not saved yet."""
        known = self._known.pop(key)
        if self._unsaved.pop(key, None) is None:
            self._writer.touch(known, self._until.pop(key, 0.0))
        elif self._writer.has_room(self._sizes[known.group]):
            self._save(known, block)
        else:
            self._dropped += 1
            self._until.pop(key, None)

    def kept(self, keys: Iterable[bytes], seconds: float) -> None:
        """Keep the files of these blocks longer, too."""
        until = time.time() + seconds
        for key in keys:
            known = self._known.get(key)
            if known is not None and self._until.get(key, 0.0) < until:
                self._until[key] = until
                if key not in self._unsaved:
                    self._writer.touch(known, until)

    def forgotten(self) -> None:
        """Take note that the content of all blocks in memory is lost."""
        self._known.clear()
        self._unsaved.clear()
        self._until.clear()

    # Saving.

    @property
    def has_work(self) -> bool:
        """Whether blocks wait to be queued, or loads to be finished."""
        return bool(self._loads) or (bool(self._unsaved) and self._writer.is_running)

    @property
    def is_loading(self) -> bool:
        """Whether sequences wait for their prefixes; their blocks are held meanwhile."""
        return bool(self._loads)

    def save(self) -> None:
        """Queue blocks that the last steps have filled, as far as there is room."""
        copied = 0
        while self._unsaved and copied < _STEP_BYTES:
            key = next(iter(self._unsaved))
            known, block = self._unsaved[key]
            size = self._sizes[known.group]
            if not self._writer.has_room(size):
                return
            del self._unsaved[key]
            self._save(known, block)
            copied += size

    def _save(self, known: Block, block: int) -> None:
        data = self._blocks.read_block(block, known.group)
        until = self._until.get(known.key, 0.0)
        if known.key not in self._known:  # it leaves memory
            self._until.pop(known.key, None)
        self._writer.write(known, data, until)

    # Loading.

    def load(self, sequence: Sequence) -> bool:
        """Begin to load what a new sequence could use; return whether it must wait for that."""
        hashes, first = self._in_memory(sequence)
        if first >= len(hashes):
            return False
        if hashes[first] in self._coming:
            self._behind.append(sequence)
            return True
        if not all(self._files.exists(block_key(hashes[first], g)) for g in self._groups):
            return False
        self._coming.update(hashes[first:])
        work = self._readers.submit(self._count, hashes[first:])
        self._loads.append(_Load(sequence, hashes, first, work))
        return True

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
        """Yield the sequences that need not wait any longer.

        Args:
            running: number of running sequences; blocks with which they can grow are left in the pool.
        """
        done = [load for load in self._loads if load.work.done()]
        for load in done:
            if load.reads or load.abandoned or not self._begin_reading(load, running):
                self._finish(load)
                if not load.abandoned:
                    yield load.sequence
        if done and self._behind:
            behind, self._behind = self._behind, []
            yield from [sequence for sequence in behind if not self.load(sequence)]

    def pause(self, seconds: float) -> None:
        """Sleep so long, or until there is something to do."""
        if not self._loads:
            self._writer.wait(seconds)
            return
        wait([load.work for load in self._loads], seconds, return_when=FIRST_COMPLETED)

    def _in_memory(self, sequence: Sequence) -> tuple[list[bytes], int]:
        """Return the hashes of the blocks that the sequence could use, and how many are in memory."""
        reusable = sequence.task.reusable(sequence)
        return self._kv.lookup(sequence.id, sequence.tokens, root=sequence.root, reusable=reusable)

    def _count(self, hashes: list[bytes]) -> int:
        """Return how many of the blocks, from the first one on, have files in all groups."""
        for i, link in enumerate(hashes):
            if not all(self._files.exists(block_key(link, g)) for g in self._groups):
                return i
        return len(hashes)

    def _begin_reading(self, load: _Load, running: int) -> bool:
        """Take blocks for what is on disk and begin to fill them; return False if there are none."""
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
        load.work = self._readers.submit(self._read, load)
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
        for count, (block, target) in enumerate(load.targets):
            if load.abandoned:
                return count
            try:
                data = self._files.read(block)
            except OSError as error:
                log.warning("%s cannot be read: %s", self._files.path(block.key), error)
                data = None
            if data is None:
                return count
            self._blocks.write_block(target, block.group, data)
        return len(load.targets)

    def _finish(self, load: _Load) -> None:
        """Register what was read, and release all blocks, the last ones of the prefix first."""
        self._loads.remove(load)
        self._coming.difference_update(load.hashes)
        pool = self._kv.pool
        filled = load.work.result() if load.reads else 0
        for block, target in load.targets[:filled]:
            self._read_bytes += self._sizes[block.group]
            if pool.find(block.key) is None:
                pool.register(block.key, target)
                self._known[block.key] = block
                self._writer.touch(block, 0.0)
        for target in reversed(load.held):
            pool.release(target)
        if filled and not load.abandoned:
            self._hit_tokens += (
                max(0, self._in_memory(load.sequence)[1] - load.first) * BLOCK_TOKENS
            )

    def held(self) -> list[list[int]]:
        """Return the blocks that loads hold."""
        return [load.held for load in self._loads]

    @property
    def stats(self) -> TierStats:
        """The counts so far."""
        return TierStats(
            waiting=len(self._behind) + sum(not load.abandoned for load in self._loads),
            hit_tokens=self._hit_tokens,
            read_bytes=self._read_bytes,
            written_bytes=self._writer.written_bytes,
            dropped_blocks=self._dropped + self._writer.dropped,
            damaged_files=self._files.damaged,
            bytes=self._files.bytes,
        )

    def close(self) -> None:
        """Write what is not on disk yet, in less than a second, and stop the threads."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        for load in self._loads:
            load.abandoned = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        while self._unsaved and (left := deadline - time.monotonic()) > 0:
            self.save()
            self._writer.wait(left)
        # A prefix that was in memory throughout has old files; the last ones of it are removed first.
        for key in self._kv.pool.keys_by_use():
            self._writer.touch(self._known[key], self._until.get(key, 0.0))
        self._writer.close(max(0.0, deadline - time.monotonic()))
