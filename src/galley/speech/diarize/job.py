"""A diarization on a thread of its own, as the server runs it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from galley.machine import available_cores, lower_thread_priority
from galley.speech.decoder import Audio
from galley.speech.diarize.diarizer import Diarization, Diarizer
from galley.speech.diarize.options import DiarizeOptions

_NICE: Final = 5
"""Niceness of the threads, as of engine processes: the server's event loop has precedence."""


@dataclass(frozen=True)
class DiarizationJob:
    """One recording that is to be diarized.

    Attributes:
        diarizer: does it.
        options: the caller's options.
        open_recording, open_reference: decode the recording, and those of known speakers.
    """

    diarizer: Diarizer
    options: DiarizeOptions
    open_recording: Callable[[], Audio]
    open_reference: Callable[[bytes], Audio]
    _cancelled: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> Diarization:
        """Return the diarization. Jobs wait for a thread in their order; cancelled, this one ends soon.

        Raises:
            AudioError, RequestError: see :class:`Diarizer`.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(_threads(), self._run)
        finally:
            self.close()

    def _run(self) -> Diarization:
        return self.diarizer(
            self.open_recording(), self.options, self.open_reference, self._cancelled
        )

    def close(self) -> None:
        """Cancel the job if it is not complete. Idempotent."""
        self._cancelled.set()


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    """Return the threads of all jobs: one for every four cores."""
    global _pool
    if _pool is None:
        count = max(1, available_cores() // 4)
        _pool = ThreadPoolExecutor(
            count, "diarization", initializer=lower_thread_priority, initargs=(_NICE,)
        )
    return _pool
