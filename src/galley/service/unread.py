"""Outputs that the engine has brought and nobody has read yet: bounded, whoever does not read.

The engine does not wait for its readers. A reader that stops reading, or one that is too slow, would
have the server keep ever more, so all streams of an engine share :data:`MOST_UNREAD_BYTES`. The stream with
most unread is cut when they have more.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from galley.errors import GalleyError, SlowReader
from galley.types import Output

MOST_UNREAD_BYTES: Final = 64 << 20
"""Of one engine's Outputs, estimated: 1,000 tokens with 20 alternatives each are about 3 MB."""

_OUTPUT_BYTES: Final = 300
_TOKEN_BYTES: Final = 32
_LOGPROB_BYTES: Final = 112
"""What Python's objects take, rounded: an Output, a token, a log-probability with its token."""


class UnreadBudget:
    """What the streams of one engine may have unread together."""

    def __init__(self, most: int = MOST_UNREAD_BYTES) -> None:
        self.total = 0
        self._most = most
        self._holders: set[Unread] = set()

    def add(self, unread: "Unread", bytes: int) -> None:
        """``unread`` has more, or less if negative. Cuts the stream with most if all have too much."""
        self.total += bytes
        if unread.bytes:
            self._holders.add(unread)
        else:
            self._holders.discard(unread)
        if self.total > self._most:
            max(self._holders, key=lambda holder: holder.bytes).cut()


class Unread:
    """One stream's Outputs, in order, between the engine and one reader.

    Attributes:
        bytes: what the unread ones take, estimated.
    """

    def __init__(self, budget: UnreadBudget, on_cut: Callable[[], None]) -> None:
        """``on_cut`` is called when the stream is cut: the engine need not go on with it."""
        self.bytes = 0
        self._budget = budget
        self._on_cut = on_cut
        self._queue: asyncio.Queue[Output | GalleyError] = asyncio.Queue()
        self._ended = False

    def put(self, output: Output) -> None:
        """The engine has brought more. Nothing comes after a ``finish_reason``."""
        if self._ended:
            return
        self._ended = output.finish_reason is not None
        self._queue.put_nowait(output)
        self._count(_bytes(output))

    def fail(self, error: GalleyError) -> None:
        """The stream ends with ``error``, after what is unread."""
        if not self._ended:
            self._ended = True
            self._queue.put_nowait(error)

    async def get(self) -> Output:
        """The next Output. Raises the error that the stream has failed with."""
        output = await self._queue.get()
        if isinstance(output, GalleyError):
            raise output
        self._count(-_bytes(output))
        return output

    def clear(self) -> None:
        """Nobody reads any more."""
        self._ended = True
        self._queue = asyncio.Queue()
        self._count(-self.bytes)

    def cut(self) -> None:
        """Drop what is unread; the reader gets an error instead."""
        self.clear()
        self._queue.put_nowait(
            SlowReader(
                "The answer was read too slowly and was cut: the server keeps only so much of answers "
                "that are not read"
            )
        )
        self._on_cut()

    def _count(self, bytes: int) -> None:
        self.bytes += bytes
        self._budget.add(self, bytes)


def _bytes(output: Output) -> int:
    size = _OUTPUT_BYTES + _TOKEN_BYTES * len(output.tokens)
    for entries in (output.logprobs, output.prompt_logprobs):
        for entry in entries or ():
            size += _LOGPROB_BYTES * (1 + len(entry.top))
    if output.alignment is not None:
        size += len(output.alignment.data)
    return size
