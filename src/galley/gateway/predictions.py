"""Computes tensors from tensors, for all protocols."""

from collections.abc import Sequence

from galley.errors import RequestError
from galley.gateway.call import Call
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
        caller, tensors = call.caller, call.info.tensors
        if tensors is not None:
            priority = tensors.priority(priority)
            if tensors.timeout:
                caller.deadline = min(caller.deadline, caller.arrived + tensors.timeout)
        self._request = predict_request(
            inputs, outputs, call.info, request_id=caller.request_id, priority=priority
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
        try:
            tensors = await stream.result(Tensors)
        except RequestError as error:
            raise RequestError(str(error), param="inputs") from None
        self._whole = True
        return tensors.outputs

    def close(self) -> None:
        """Cancel the request if it still runs, and settle the accounts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._call.close()
        self._call.tensors_ended(rows=self._request.payload.reads, whole=self._whole)
