"""Receives the messages of gRPC calls, within a limit on the bytes that all of them hold together.

grpcio reads the message of a unary call before it calls the handler. The handlers here are therefore those
of streams of messages, also for calls that have only one: they decide when a message is read. What is sent
before that is held back by HTTP/2's flow control, at the sender.
"""

import asyncio
from typing import Any

from galley.errors import RequestError
from galley.protocols.common.errors import ApiError
from galley.settings.config import Settings


class MessageReader:
    """Reads the only message of a call.

    The size of a message is not known before it is complete, so each one being received counts as one of
    the greatest size.
    """

    def __init__(self, settings: Settings, end: Any) -> None:
        """Create a reader.

        Args:
            settings: the limits.
            end: what a call's context returns after the last message.
        """
        self._end = end
        self._settings = settings
        self._places = asyncio.Semaphore(
            max(1, settings.max_unfinished_body_bytes // settings.max_body_bytes)
        )

    async def one(self, context: Any) -> bytes:
        """Return a call's message.

        Raises:
            ApiError: 503: too many messages are being received; 408: this one takes too long.
            RequestError: the call has none.
        """
        settings = self._settings
        try:
            async with asyncio.timeout(settings.body_timeout):
                await self._places.acquire()
        except TimeoutError:
            raise ApiError(
                503,
                "The gRPC messages being received use all of their "
                f"{settings.max_unfinished_body_bytes} bytes (--max-unfinished-body-bytes); try again "
                "later",
                type="service_unavailable",
                code="too_many_bodies",
            ) from None
        longest = settings.body_timeout + settings.max_body_bytes / settings.min_body_rate
        try:
            async with asyncio.timeout(longest):
                data = await context.read()
        except TimeoutError:
            raise ApiError(
                408,
                f"The message was not complete within {longest:g} s (--body-timeout, --min-body-rate)",
                type="invalid_request_error",
                code="request_timeout",
            ) from None
        finally:
            self._places.release()
        if data is self._end:
            raise RequestError("the call has no message")
        message: bytes = data
        return message
