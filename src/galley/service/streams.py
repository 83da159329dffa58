"""One request between its submission and the last of its Outputs, on the server's side."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from galley.service.admission import Claim
from galley.service.unread import Unread
from galley.types import EngineRequest, Output, Timing


@dataclass(slots=True)
class Unfinished:
    """A request that the engine has not finished, and what of its answer was delivered.

    Attributes:
        unread: what the reader has not taken yet.
        claim: in the books of admission.
        submitted: on the monotonic clock, in seconds.
        timer: ends the request at its deadline, if it has one.
    """

    request: EngineRequest
    unread: Unread
    claim: Claim
    submitted: float
    timer: asyncio.TimerHandle | None = None
    tokens: list[int] = field(default_factory=list)
    first_token: float = 0.0
    cached: int = 0
    answered: bool = False
    resumed: bool = False

    def resumption(self) -> EngineRequest:
        """The request as a new engine needs it. What came with the first Output is not computed twice."""
        if not self.resumed:
            return self.request
        payload = self.request.payload.resumed(self.tokens, answered=self.answered)
        return msgspec.structs.replace(self.request, payload=payload)

    def take(self, output: Output) -> None:
        """Note what the engine delivered; hide that it is not the engine that began the request."""
        now = time.monotonic()
        self.tokens.extend(output.tokens)
        if not self.answered:
            self.answered, self.cached, self.first_token = True, output.cached_tokens, now
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
"""Seconds until who does not give up asks a full queue again."""


class Outputs(Protocol):
    """One request's Outputs, as they come; ends after the one that has a ``finish_reason``."""

    def __aiter__(self) -> AsyncIterator[Output]:
        """The stream itself; it can be iterated once."""

    async def __anext__(self) -> Output:
        """Wait for the next. Raises DeadlineExceeded or SlowReader if there will be none."""

    def cancel(self) -> None:
        """The engine forgets the request within one step. Harmless when it has finished."""


class OpenCall(Protocol):
    """Takes engine requests of a caller whose deadline it knows, as :class:`galley.gateway.call.Call`."""

    def submit_all(self, requests: Sequence[EngineRequest]) -> Sequence[Outputs]:
        """See :meth:`galley.service.client.EngineClient.submit_all`."""

    async def submit_patiently(self, requests: Sequence[EngineRequest]) -> Sequence[Outputs]:
        """See :meth:`galley.service.client.EngineClient.submit_patiently`."""


class OutputStream:
    """One request's Outputs, as they come; ends after the one that has a ``finish_reason``."""

    def __init__(self, request: Unfinished, cancel: Callable[[str], None]) -> None:
        self._request = request
        self._cancel = cancel
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        """Wait for the next. Raises DeadlineExceeded or SlowReader if there will be none."""
        if self._ended:
            raise StopAsyncIteration
        output = await self._request.unread.get()
        self._ended = output.finish_reason is not None
        return output

    def cancel(self) -> None:
        """The engine forgets the request within one step. Harmless when it has finished."""
        self._ended = True
        self._request.unread.clear()
        self._cancel(self._request.request.id)
