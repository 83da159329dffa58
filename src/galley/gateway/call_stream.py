"""The outputs of the requests of one call, counted as they arrive."""

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, TypeVar

from galley.errors import Draining, EngineError, RequestError
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.service.streams import Outputs
from galley.types import Output, Tensors, Timing, Vector
from galley.types.transfers import KVPeer

if TYPE_CHECKING:
    from galley.gateway.call import Call

Whole = TypeVar("Whole", Vector, Tensors)
"""Results that come in a request's only Output."""


class CallStream:
    """One engine request's Outputs, counted as they arrive; ends after the one with a ``finish_reason``.

    Attributes:
        tokens: number of tokens so far.
        first_token: arrival of the first token, on the monotonic clock; None before.
        timing: the last known timing.
        kv_peer: where the blocks of the prompt can be fetched, once it has ended.
    """

    def __init__(self, call: "Call", stream: Outputs) -> None:
        """Count ``stream`` for ``call``, whose ``submit`` methods create this."""
        self.tokens = 0
        self.first_token: float | None = None
        self.timing: Timing | None = None
        self.kv_peer: KVPeer | None = None
        self._call = call
        self._stream = stream
        self._submitted = self._latest = time.monotonic()
        self._billed = False
        self._inter_token = call.served.metrics.inter_token

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        output = await self._stream.__anext__()
        count = len(output.tokens)
        if count:
            now = time.monotonic()
            if self.first_token is None:
                self.first_token = now
            else:
                self._inter_token.observe(now - self._latest)
            self._latest = now
            self.tokens += count
            self._call._delivered(count, now)
        if output.timing is not None:
            self.timing = output.timing
        if output.finish_reason is not None:
            self.kv_peer = output.kv_peer
            self._ended()
        return output

    async def result(self, kind: type[Whole]) -> Whole:
        """Return the result of a request that has a single Output, such as a vector or tensors.

        Raises:
            Draining: the server is stopping.
            RequestError: the model does not take the request's values; it names no field.
            EngineError: the model failed on the request, or returned something else.
        """
        async for output in self:
            if output.finish_reason == "abort":
                raise Draining(
                    "The server stopped before the answer was complete", retry_after=RETRY_SECONDS
                )
            if output.finish_reason == "error":
                self._call.sequence_lost("error")
                error = output.error or "The engine gave up the request"
                raise RequestError(error) if output.refused else EngineError(error)
            if isinstance(output.result, kind):
                self._call.sequence_ended(self, "stop")
                return output.result
        raise EngineError(f"The engine ended a request without {kind.__name__.lower()}")

    def cancel(self, *, whole: bool = False) -> None:
        """Have the engine drop the request within one step. Harmless when it has finished.

        Args:
            whole: whether the Outputs so far are the whole answer, as the reader sees it.
        """
        self._ended()
        self._stream.cancel(whole=whole)

    def _ended(self) -> None:
        """Add the last known timing to the receipt, once."""
        self._call._open.discard(self)
        if self.timing is not None and not self._billed:
            self._billed = True
            self._call.receipt.add(self._submitted, self.timing)
