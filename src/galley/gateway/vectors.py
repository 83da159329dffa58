"""Computes vectors of texts and scores of pairs from token ids, for all protocols."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from galley.errors import RequestError
from galley.gateway.call import Call
from galley.service.vector_requests import vector_request
from galley.types import EngineRequest, Vector

_AHEAD: Final = 128
"""Texts of one request in the engine at a time, so that other requests do not wait for all of them."""

REMEDY: Final = "; send truncate_prompt_tokens to cut it"


class Prepared(NamedTuple):
    """A text, or a pair, as token ids.

    ``second``: see :class:`galley.types.Embed`; ``param``: the field of the request that contains it.
    """

    ids: list[int]
    param: str
    second: int = 0


def cut_to(call: Call, truncate_prompt_tokens: int | None) -> int | None:
    """Return the number of tokens to which texts are cut; None: they are not cut.

    Args:
        call: opened for the request.
        truncate_prompt_tokens: the request's value; -1: the model's maximum.

    Raises:
        RequestError: the value is below 1 and not -1, or more than the model accepts.
    """
    if truncate_prompt_tokens is None:
        return None
    most = call.info.max_request_tokens
    if call.caller.tenant.max_context is not None:
        most = min(most, call.caller.tenant.max_context)
    if truncate_prompt_tokens == -1:
        return most
    if not 1 <= truncate_prompt_tokens <= most:
        raise RequestError(
            f"truncate_prompt_tokens is {truncate_prompt_tokens}, expected 1 to {most}, or -1 for "
            f"{most}",
            param="truncate_prompt_tokens",
        )
    return truncate_prompt_tokens


class Vectors:
    """The vectors of the texts of one request. Its creator must close it.

    Attributes:
        tokens: number of tokens of all texts.
    """

    def __init__(
        self,
        call: Call,
        texts: Sequence[Prepared],
        *,
        dimensions: int = 0,
        priority: int = 0,
        remedy: str = REMEDY,
    ) -> None:
        """Check all texts; nothing is submitted yet.

        Args:
            call: opened for the request.
            texts: in the order of the answer.
            dimensions, priority: see :func:`galley.service.vector_requests.vector_request`.
            remedy: this protocol's advice for a text that is too long.

        Raises:
            RequestError: a text cannot be honored by this model.
        """
        self._call = call
        self._done = 0
        self._closed = False
        self.tokens = sum(len(text.ids) for text in texts)
        self._requests: list[EngineRequest] = [
            vector_request(
                text.ids,
                call.info,
                request_id=f"{call.caller.request_id}-{index}",
                second=text.second,
                dimensions=dimensions,
                priority=priority,
                param=text.param,
                context=call.caller.tenant.max_context,
                remedy=remedy,
            )
            for index, text in enumerate(texts)
        ]

    async def all(self) -> list[bytes]:
        """Compute and return the vector of each text, as float32.

        Raises:
            EngineError: the engine gave up a text.
            Unavailable: the queue is full, the tenant has no tokens left, or the server is stopping.
            DeadlineExceeded: the request's deadline has passed.
        """
        ahead = max(1, min(_AHEAD, self._call.room))
        first, rest = self._requests[:ahead], self._requests[ahead:]
        under_way = deque(await self._call.submit(first, reserve=self.tokens))
        self._call.prompts_taken(self.tokens)
        vectors = []
        while under_way:
            vector = await under_way.popleft().result(Vector)
            vectors.append(vector.data)
            self._done += 1
            if rest and len(under_way) <= ahead // 2:
                take = max(1, min(ahead - len(under_way), self._call.room))
                more, rest = rest[:take], rest[take:]
                under_way.extend(await self._call.submit(more, waits=True))
        return vectors

    def close(self) -> None:
        """Cancel the texts still in the engine, and settle the accounts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._call.close()
        whole = self._done == len(self._requests)
        reason = "stop" if whole else "unfinished"
        self._call.texts_ended(
            prompt=self.tokens, cached=0, generated=0, reason=reason, whole=whole
        )
