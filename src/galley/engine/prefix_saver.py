"""Saves blocks of keys and values to disk, so that prefixes outlive memory and the process.

    a step fills blocks  --copy-->  queue  --writer thread-->  files     prefix_writer.py, prefix_files.py

The engine's thread only copies: it never waits for the disk. A block is written soon after it is
computed, so little is lost when the process is killed.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from galley.engine.block_form import Block
from galley.engine.prefix_files import PrefixFiles
from galley.engine.prefix_writer import PrefixWriter
from galley.ops.executor import BlockAccess

_STEP_BYTES: Final = 16 << 20
"""Bytes that are copied to the queue after one step: some milliseconds."""


class PrefixSaver:
    """Saves the blocks that a KV cache registers. The engine's thread calls it, between two steps.

    Args:
        files: the files of this model.
        blocks: copies blocks from the executor's memory.
        known: all blocks in memory, by key.

    Attributes:
        dropped: blocks that were not saved because the disk was too slow.
    """

    def __init__(
        self, files: PrefixFiles, blocks: BlockAccess, known: Mapping[bytes, Block]
    ) -> None:
        self.dropped = 0
        self._blocks = blocks
        self._known = known
        self._unsaved: dict[bytes, tuple[Block, int]] = {}
        """Registered blocks that are not queued yet, by key."""
        self._until: dict[bytes, float] = {}
        """Time until which blocks in memory are kept, by key, in seconds since 1970."""
        self.writer = PrefixWriter(files, lambda: self._known)

    def registered(self, made: Block, block: int) -> None:
        """Take note of a block that is full once this step has run."""
        self._unsaved[made.key] = made, block

    def evicted(self, known: Block, block: int) -> None:
        """Save a block whose memory is about to be reused, if it is not saved yet."""
        key = known.key
        if self._unsaved.pop(key, None) is None:
            self.writer.touch(known, self._until.pop(key, 0.0))
        elif self.writer.has_room(self._size(known)):
            self._save(known, block)
        else:
            self.dropped += 1
            self._until.pop(key, None)

    def kept(self, keys: Iterable[bytes], seconds: float) -> None:
        """Keep the files of these blocks longer, too."""
        until = time.time() + seconds
        for key in keys:
            known = self._known.get(key)
            if known is not None and self._until.get(key, 0.0) < until:
                self._until[key] = until
                if key not in self._unsaved:
                    self.writer.touch(known, until)

    def read(self, block: Block) -> None:
        """Take note of a block that has been read from its file."""
        self.writer.touch(block, 0.0)

    def forgotten(self) -> None:
        """Take note that the content of all blocks in memory is lost."""
        self._unsaved.clear()
        self._until.clear()

    @property
    def has_work(self) -> bool:
        """Whether blocks wait to be queued."""
        return bool(self._unsaved) and self.writer.is_running

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of what was written, by field of :class:`EngineStats`."""
        return {
            "prefix_disk_written_bytes": self.writer.written_bytes,
            "prefix_disk_dropped_blocks": self.dropped + self.writer.dropped,
        }

    def save(self) -> None:
        """Queue blocks that the last steps have filled, as far as there is room."""
        copied = 0
        while self._unsaved and copied < _STEP_BYTES:
            key = next(iter(self._unsaved))
            known, block = self._unsaved[key]
            size = self._size(known)
            if not self.writer.has_room(size):
                return
            del self._unsaved[key]
            self._save(known, block)
            copied += size

    def close(self, keys: Iterable[bytes], deadline: float) -> None:
        """Write what is not on disk yet, until the deadline on the monotonic clock, and stop the thread.

        ``keys``: those of the blocks in memory, the least recently used first.
        """
        while self._unsaved and (left := deadline - time.monotonic()) > 0:
            self.save()
            self.writer.wait(left)
        # A prefix that was in memory throughout has old files; the last ones of it are removed first.
        for key in keys:
            self.writer.touch(self._known[key], self._until.get(key, 0.0))
        self.writer.close(max(0.0, deadline - time.monotonic()))

    def _size(self, block: Block) -> int:
        return self._blocks.block_bytes(block.group)

    def _save(self, known: Block, block: int) -> None:
        data = self._blocks.read_block(block, known.group)
        until = self._until.get(known.key, 0.0)
        if known.key not in self._known:  # it leaves memory
            self._until.pop(known.key, None)
        self.writer.write(known, data, until)
