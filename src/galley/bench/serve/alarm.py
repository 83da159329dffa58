"""Timers with microsecond precision: the event loop's own timers are rounded up to milliseconds."""

import asyncio
import ctypes
import os
import struct
from types import TracebackType
from typing import Final, Self

_ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME
_MONOTONIC: Final = 1  # CLOCK_MONOTONIC, which is the event loop's clock
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC


class Alarm:
    """A kernel timer (timerfd_create(2)); where there is none, the event loop's timer.

    Serves one task of the running event loop, which enters it as a context manager.
    """

    _CREATE = "timerfd_create"

    def __enter__(self) -> Self:
        self._libc = ctypes.CDLL(None, use_errno=True)
        create = getattr(self._libc, self._CREATE, None)
        self._timer: int = -1 if create is None else create(_MONOTONIC, _FLAGS)
        self._rang = asyncio.Event()
        if self._timer >= 0:
            asyncio.get_running_loop().add_reader(self._timer, self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer >= 0:
            asyncio.get_running_loop().remove_reader(self._timer)
            os.close(self._timer)

    async def wait_until(self, due: float) -> None:
        """Return at ``due`` on the event loop's clock, in seconds; at once if that is past."""
        loop = asyncio.get_running_loop()
        if due <= loop.time():
            return
        if self._timer < 0:
            await asyncio.sleep(due - loop.time())
            return
        self._rang.clear()
        nanoseconds = int(due * 1e9)
        interval, value = (0, 0), divmod(nanoseconds, 10**9)
        setting = struct.pack("@llll", *interval, *value)
        if self._libc.timerfd_settime(self._timer, _ABSOLUTE, setting, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._rang.wait()

    def _ring(self) -> None:
        os.read(self._timer, 8)
        self._rang.set()
