"""The thread that writes blocks to disk, so that no step waits for it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from typing import Final, NamedTuple

from galley.engine.block_form import Block
from galley.engine.prefix_files import PrefixFiles
from galley.machine import lower_thread_priority
from galley.ops.executor import Bytes

log: Final = logging.getLogger("galley.prefixes")

QUEUE_BYTES: Final = 32 << 20
"""Bytes of blocks that wait to be written; more are not taken."""

_TOUCHES: Final = 1 << 16
"""Number of uses that wait to be recorded; more are dropped."""

_RETRY_SECONDS: Final = 60.0
"""Seconds without writes after one has failed, such as on a full disk."""

_NICENESS: Final = 15


class _Job(NamedTuple):
    """A block to write, or, without ``data``, one whose use is to be recorded."""

    block: Block
    data: Bytes | None
    until: float


class PrefixWriter:
    """Writes blocks in order and keeps the folder within its bytes.

    A failed write costs the block and one warning; later ones are tried again after a minute.

    Args:
        files: the files.
        in_use: returns the keys of the blocks in memory, whose files count as used now.

    Attributes:
        written_bytes: what was written so far.
        dropped: blocks that were not written because the disk failed.
    """

    def __init__(self, files: PrefixFiles, in_use: Callable[[], Container[bytes]]) -> None:
        self._files = files
        self._in_use = in_use
        self._jobs: deque[_Job] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._failed_at: float | None = None
        self.written_bytes = self.dropped = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="galley-prefix-writer")
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether what is queued will be written."""
        return self._thread.is_alive()

    def has_room(self, size: int) -> bool:
        """Return whether a block of this many bytes would be taken."""
        return not self._bytes or self._bytes + size <= QUEUE_BYTES

    def write(self, block: Block, data: Bytes, until: float) -> None:
        """Queue a block to be written; ``until``: see :meth:`PrefixFiles.write`."""
        self._put(_Job(block, data, until))

    def touch(self, block: Block, until: float) -> None:
        """Queue a note that a block was used now."""
        if len(self._jobs) < _TOUCHES:
            self._put(_Job(block, None, until))

    def wait(self, seconds: float) -> None:
        """Wait so long, or until another block is written."""
        with self._changed:
            if self._jobs:
                self._changed.wait(seconds)

    def close(self, seconds: float) -> None:
        """Finish what is queued and stop; give up after ``seconds``."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _put(self, job: _Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._bytes += 0 if job.data is None else job.data.nbytes
            self._changed.notify_all()

    def _run(self) -> None:
        lower_thread_priority(_NICENESS)
        self._guarded(self._files.trim)
        while True:
            with self._changed:
                while not self._jobs and not self._closing:
                    self._changed.wait()
                if not self._jobs:
                    return
                job = self._jobs[0]
            self._do(job)
            with self._changed:
                self._jobs.popleft()
                self._bytes -= 0 if job.data is None else job.data.nbytes
                self._changed.notify_all()

    def _do(self, job: _Job) -> None:
        data = job.data
        if data is None:
            self._files.touch(job.block.key, until=job.until)
            return
        if self._failed_at is not None and time.monotonic() - self._failed_at < _RETRY_SECONDS:
            self.dropped += 1
            return
        self._guarded(lambda: self._write(job.block, data, job.until))

    def _write(self, block: Block, data: Bytes, until: float) -> None:
        written = self._files.write(block, data, until=until)
        self.written_bytes += written
        if self._failed_at is not None:
            log.info("%s can be written again", self._files.folder)
            self._failed_at = None
        if self._files.needs_trimming:
            self._files.trim(self._in_use())

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.dropped += 1
            if self._failed_at is None:
                log.warning(
                    "prefix_cache_dir: cannot write to %s (%s); blocks stay in memory alone until it can "
                    "be written again",
                    self._files.folder,
                    error.strerror or error,
                )
            self._failed_at = time.monotonic()
