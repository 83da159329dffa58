"""Receives the messages of gRPC calls, within a limit on the bytes that all of them hold together.

grpcio reads the message of a unary call before it calls the handler. The handlers here are therefore those
of streams of messages, also for calls that have only one: they decide when a message is read. What is sent
before that is held back by HTTP/2's flow control, at the sender.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from galley.errors import RequestError
from galley.protocols.common.errors import ApiError
from galley.settings.config import Settings


class MessageReader:
    """Reads the only message of a call, and counts the streams of messages.

    The size of a message is not known before it is complete, so each one being received counts as one of
    the greatest size. A stream may wait for its next message as long as it likes, and part of that may
    have arrived, so an open stream counts like a message. Streams get at most half of the memory.
    """

    def __init__(self, settings: Settings, end: Any) -> None:
        """Create a reader.

        Args:
            settings: the limits.
            end: what a call's context returns after the last message.
        """
        self._end = end
        self._settings = settings
        places = settings.max_unfinished_body_bytes // settings.max_body_bytes
        self._free_streams = max(1, places // 2)
        self._places = asyncio.Semaphore(max(1, places - self._free_streams))

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream for as long as it is open. Raises ApiError: 503: too many are open."""
        if not self._free_streams:
            raise _too_many("open gRPC streams", self._settings)
        self._free_streams -= 1
        try:
            yield
        finally:
            self._free_streams += 1

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
            raise _too_many("gRPC messages being received", settings) from None
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


def _too_many(what: str, settings: Settings) -> ApiError:
    return ApiError(
        503,
        f"The {what} use all of their share of {settings.max_unfinished_body_bytes} bytes "
        "(--max-unfinished-body-bytes); try again later",
        type="service_unavailable",
        code="too_many_bodies",
    )
