"""Computes tensors from tensors, for all protocols."""

from collections.abc import Sequence

from galley.errors import Draining, EngineError, RequestError
from galley.gateway.call import Call
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.service.tensor_requests import predict_request
from galley.types import Tensor, Tensors


class Prediction:
    """The outputs of one request of tensors. Its creator must close it."""

    def __init__(
        self,
        call: Call,
        inputs: Sequence[Tensor],
        outputs: Sequence[str] = (),
        *,
        priority: int = 0,
    ) -> None:
        """Check the tensors; nothing is submitted yet.

        Args:
            call: opened for the request.
            inputs: the model's inputs, in any order.
            outputs: names of the outputs to return; empty: all.
            priority: the request's priority.

        Raises:
            RequestError: the model does not take these tensors; the error names the one at fault.
        """
        self._call = call
        self._whole = False
        self._request = predict_request(
            inputs, outputs, call.info, request_id=call.caller.request_id, priority=priority
        )
        self._closed = False

    async def outputs(self) -> Sequence[Tensor]:
        """Compute and return the outputs.

        Raises:
            RequestError: the model does not take these values.
            EngineError: the model failed on these tensors.
            Unavailable: the queue is full, or the server is stopping.
            DeadlineExceeded: the request's deadline has passed.
        """
        [stream] = await self._call.submit([self._request])
        async for output in stream:
            if output.finish_reason == "abort":
                raise Draining(
                    "The server stopped before the answer was complete", retry_after=RETRY_SECONDS
                )
            if output.finish_reason == "error":
                self._call.sequence_lost("error")
                error = output.error or "The engine gave the request up"
                raise RequestError(error, param="inputs") if output.refused else EngineError(error)
            if isinstance(output.result, Tensors):
                self._whole = True
                self._call.sequence_ended(stream, "stop")
                return output.result.outputs
        raise EngineError("The engine ended a request without outputs")

    def close(self) -> None:
        """Cancel the request if it still runs, and settle the accounts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._call.close()
        self._call.tensors_ended(rows=self._request.payload.reads, whole=self._whole)
