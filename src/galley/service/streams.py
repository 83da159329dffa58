"""The server's side of one request, from its submission to the last of its Outputs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from galley.errors import GalleyError
from galley.service.admission import Claim
from galley.service.unread import Unread
from galley.types import Audio, EngineRequest, Output, Timing

if TYPE_CHECKING:
    from galley.service.replica import Replica


@dataclass(slots=True)
class Unfinished:
    """A request that the engine has not finished, and the part of its answer that was delivered.

    Attributes:
        unread: the Outputs that the reader has not taken yet.
        claim: the request's account in the admission.
        submitted: when it was submitted, on the monotonic clock, in seconds.
        replica: the replica that has the request.
        timer: ends the request at its deadline, if it has one.
        prefill: computes the prompt elsewhere; the request is sent to its replica after that.
        version: of the replica that the first Output came from; only replicas of the same version may
            continue it. None before it.
        release: of the replica that the first Output came from; empty before it, or without releases.
        left: the replica that had the request before this one, if it moved.
        left_at: tokens that had been delivered when it moved.
    """

    request: EngineRequest
    unread: Unread
    claim: Claim
    submitted: float
    replica: "Replica"
    timer: asyncio.TimerHandle | None = None
    prefill: "asyncio.Task[None] | None" = None
    version: str | None = None
    release: str = ""
    tokens: list[int] = field(default_factory=list)
    samples: int = 0
    first_token: float = 0.0
    cached: int = 0
    answered: bool = False
    resumed: bool = False
    left: "Replica | None" = None
    left_at: int = 0

    def resumption(self) -> EngineRequest:
        """Return the request for a new engine, which does not recompute what the first Output contained."""
        if not self.resumed:
            return self.request
        payload = self.request.payload.resumed(
            self.tokens, answered=self.answered, samples=self.samples
        )
        return msgspec.structs.replace(self.request, payload=payload)

    def take(self, output: Output, now: float) -> None:
        """Pass an Output to the reader, corrected as if a single engine had served the whole request.

        Args:
            output: from the replica that has the request.
            now: when it arrived, on the monotonic clock, in seconds.
        """
        self.tokens.extend(output.tokens)
        if isinstance(output.result, Audio):
            self.samples += output.result.samples
        if not self.answered:
            self.answered, self.cached, self.first_token = True, output.cached_tokens, now
            self.version, self.release = self.replica.version, self.replica.source.release
        if self.resumed:
            timing = output.timing and Timing(
                queued=output.timing.queued,
                first_token=self.first_token - self.submitted,
                total=now - self.submitted,
                preemptions=output.timing.preemptions,
                engine_seconds=output.timing.engine_seconds,
                proposed=output.timing.proposed,
                accepted=output.timing.accepted,
            )
            output = msgspec.structs.replace(output, cached_tokens=self.cached, timing=timing)
        self.unread.put(output)


LONGEST_WAIT: Final = 1.0
"""Longest pause in seconds before a patient caller retries a full queue."""


class Outputs(Protocol):
    """The Outputs of one request as they arrive; ends after the one that has a ``finish_reason``."""

    def __aiter__(self) -> AsyncIterator[Output]:
        """Return the stream itself; it can be iterated once."""

    async def __anext__(self) -> Output:
        """Wait for the next Output. Raises DeadlineExceeded or SlowReader if there will be none."""

    def cancel(self, *, whole: bool = False) -> None:
        """Have the engine drop the request within one step. Harmless when it has finished.

        Args:
            whole: whether the Outputs so far are the whole answer, as the reader sees it.
        """


class OpenCall(Protocol):
    """Submits engine requests of a caller with a known deadline, like :class:`galley.gateway.call.Call`."""

    def submit_all(self, requests: Sequence[EngineRequest]) -> Sequence[Outputs]:
        """See :meth:`galley.service.client.EngineClient.submit_all`."""

    async def submit_when_room(self, requests: Sequence[EngineRequest]) -> Sequence[Outputs]:
        """See :meth:`galley.service.client.EngineClient.submit_when_room`."""


class OutputStream:
    """The Outputs of one request as they arrive; ends after the one that has a ``finish_reason``."""

    def __init__(self, request: Unfinished, cancel: Callable[[str], None]) -> None:
        self._request = request
        self._cancel = cancel
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        """Wait for the next Output. Raises DeadlineExceeded or SlowReader if there will be none."""
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._request.unread.get()
        except GalleyError:
            self._ended = True
            raise
        self._ended = output.finish_reason is not None
        return output

    def cancel(self, *, whole: bool = False) -> None:
        """Have the engine drop the request within one step. Harmless when it has finished."""
        self._ended = True
        self._request.unread.clear()
        self._cancel(self._request.request.id)
