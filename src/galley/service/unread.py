"""Outputs that the engine has delivered and that are not read yet, with a bound on their memory.

The engine does not wait for its readers. A reader takes everything that has arrived since its last read
at once, so each stream costs less when the server falls behind. A reader that stops reading, or reads too
slowly, would make the server hold ever more data, so all streams of an engine share
:data:`MOST_UNREAD_BYTES`. When they exceed it, the stream with the most unread bytes is cut.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from galley.errors import GalleyError, SlowReader
from galley.service.arrival import Arrival
from galley.types import Audio, Output, Result, Tensors, Tokens

T = TypeVar("T")

MOST_UNREAD_BYTES: Final = 64 << 20
"""Limit of one engine's unread Outputs in bytes; 1,000 tokens with 20 alternatives are about 3 MB."""

_MOST_TAKEN: Final = 32
"""Maximum Outputs merged into one read; more would delay the other streams."""

_QUICK_SECONDS: Final = 0.002
_LONGEST_PAUSE: Final = 0.05
"""Limits of :func:`leave_time_to_others`, in seconds."""

_OUTPUT_BYTES: Final = 300
_TOKEN_BYTES: Final = 32
_LOGPROB_BYTES: Final = 112
"""Rounded sizes of Python's objects: an Output, a token, and a log-probability with its token."""


class UnreadBudget:
    """The budget that the streams of one engine share for unread Outputs."""

    def __init__(self, most: int = MOST_UNREAD_BYTES) -> None:
        self.total = 0
        self._most = most
        self._holders: set[Unread] = set()

    def add(self, unread: "Unread", bytes: int) -> None:
        """Add bytes of ``unread``, or subtract if negative; cut the largest stream if over budget."""
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
        bytes: estimated size of the unread Outputs.
    """

    def __init__(self, budget: UnreadBudget, on_cut: Callable[[], None]) -> None:
        """Create an empty stream.

        Args:
            budget: the budget that the engine's streams share.
            on_cut: called when the stream is cut, since the engine need not continue it.
        """
        self.bytes = 0
        self._budget = budget
        self._on_cut = on_cut
        self._outputs: deque[Output] = deque()
        self._error: GalleyError | None = None
        self._arrival = Arrival()
        self._behind = False
        self._ended = False

    def put(self, output: Output) -> None:
        """Add an Output from the engine. Anything after a ``finish_reason`` is ignored."""
        if self._ended:
            return
        self._ended = output.finish_reason is not None
        self._outputs.append(output)
        self._arrival.wake()
        self._count(size_of(output))

    def fail(self, error: GalleyError) -> None:
        """End the stream with ``error``, after the unread Outputs."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._arrival.wake()

    async def get(self) -> Output:
        """Wait for Outputs and return them merged into one. Raises a failed stream's error, once."""
        if self._behind:
            # Outputs are there, so a reader far behind would let nobody else run.
            await asyncio.sleep(0)
        if not self._outputs and self._error is None:
            await self._arrival.wait()
        if not self._outputs:
            # Its traceback refers to this frame, so a reference from here to it would be a cycle: all that
            # belongs to the request would stay in memory until the next garbage collection.
            error, self._error = self._error, None
            assert error is not None
            try:
                raise error
            finally:
                del error
        if len(self._outputs) == 1:  # as long as the server keeps pace
            self._behind = False
            self._count(-self.bytes)
            return self._outputs.popleft()
        taken = [self._outputs.popleft()]
        while self._outputs and len(taken) < _MOST_TAKEN and not _is_failure(self._outputs[0]):
            taken.append(self._outputs.popleft())
        self._behind = bool(self._outputs)
        self._count(-sum(map(size_of, taken)))
        return taken[0] if len(taken) == 1 else as_one(taken)

    def clear(self) -> None:
        """Drop all unread Outputs and end the stream: it is not read any more."""
        self._ended = True
        self._outputs.clear()
        self._count(-self.bytes)

    def cut(self) -> None:
        """Drop all unread Outputs and end the stream with an error for the reader."""
        self.clear()
        self._error = SlowReader(
            "The answer was truncated because it was read too slowly: the server's buffer for "
            "unread answers is full"
        )
        self._arrival.wake()
        self._on_cut()

    def _count(self, bytes: int) -> None:
        self.bytes += bytes
        self._budget.add(self, bytes)


async def leave_time_to_others() -> None:
    """Let the readers take the new output; if that takes long, give new requests as much time again.

    More output arrives in the meantime, and each reader then takes all of it at once, for little more than
    the cost of one token. So when the server is short of CPU time, texts are streamed in larger pieces and
    new requests are still answered promptly.
    """
    began = time.monotonic()
    await asyncio.sleep(0)  # tasks that wait for tokens become ready
    await asyncio.sleep(0)  # and run
    took = time.monotonic() - began
    if took > _QUICK_SECONDS:
        await asyncio.sleep(min(took, _LONGEST_PAUSE))


def _is_failure(output: Output) -> bool:
    """Return whether the Outputs before this one must be delivered separately."""
    return output.finish_reason in ("error", "abort")


def _joined(parts: Sequence[list[T] | None]) -> list[T] | None:
    given = [part for part in parts if part is not None]
    return [entry for part in given for entry in part] if given else None


def as_one(outputs: Sequence[Output]) -> Output:
    """Merge the ``outputs`` of several steps into one."""
    last = outputs[-1]
    return msgspec.structs.replace(
        outputs[0],
        result=_result([output.result for output in outputs]),
        cached_tokens=max(output.cached_tokens for output in outputs),
        finish_reason=last.finish_reason,
        error=last.error,
        timing=next((o.timing for o in reversed(outputs) if o.timing is not None), None),
    )


def _result(results: Sequence[Result | None]) -> Result | None:
    """Merge tokens, or audio, into one result; any other result arrives whole, and last."""
    if audio := [result.data for result in results if isinstance(result, Audio)]:
        return Audio(b"".join(audio))
    parts = [result for result in results if isinstance(result, Tokens)]
    if not parts:
        return results[-1]
    return msgspec.structs.replace(
        parts[0],
        tokens=[token for part in parts for token in part.tokens],
        logprobs=_joined([part.logprobs for part in parts]),
        scores=_joined([part.scores for part in parts]),
    )


def size_of(output: Output) -> int:
    """Return the estimated bytes of an Output in this process."""
    result = output.result
    if result is None:
        return _OUTPUT_BYTES
    if isinstance(result, Tensors):
        # They are the only Output of a request, and are read at once, however slow its client is.
        return _OUTPUT_BYTES
    if not isinstance(result, Tokens):
        return _OUTPUT_BYTES + len(result.data)
    size = _OUTPUT_BYTES + _TOKEN_BYTES * len(result.tokens)
    for entries in (result.logprobs, result.prompt_logprobs):
        for entry in entries or ():
            size += _LOGPROB_BYTES * (1 + len(entry.top))
    return size
