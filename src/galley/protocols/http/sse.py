"""Answers sent whole or as events, and work that is cancelled when its client hangs up."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from galley.errors import GalleyError
from galley.protocols.common.errors import envelope, to_api_error
from galley.protocols.http.errors import CLIENT_GONE, ClientGone, note_error
from galley.protocols.http.json_answers import LargeJson

log = logging.getLogger("galley.server")

DONE: Final = b"data: [DONE]\n\n"

_LINE_ENDS: Final = tuple((c.encode(), json.dumps(c)[1:-1].encode()) for c in "\x85\u2028\u2029")

T = TypeVar("T")


class Watched:
    """A request whose server tells when its client has hung up, so that nothing has to wait for that.

    Its ``receive`` is that of ASGI.

    Attributes:
        gone: whether the client has hung up, or the request was refused.
        on_gone: called when that happens.
    """

    gone: bool = False
    on_gone: Callable[[], None] | None = None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled as soon as the client hangs up.

    The request's body must already have been read.

    Raises:
        ClientGone: the client hung up first.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    # The work runs in the caller's task: a task of its own costs further rounds of the loop.
    hang_up = _HangUp(task)
    try:
        hang_up.watch(receive)
        return await work
    except asyncio.CancelledError:
        if hang_up.happened and task.cancelling() == before + 1:
            raise ClientGone("the client disconnected") from None
        raise
    finally:
        hang_up.end()
        if hang_up.happened:
            task.uncancel()
        # An error refers to this frame, and the task to the error: they would stay until a collection.
        del task, hang_up


class _HangUp:
    """Cancels a task when the client hangs up.

    Attributes:
        happened: whether it did.
    """

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        """Watch nothing yet."""
        self.happened = False
        self._task: asyncio.Task[Any] | None = task
        self._watched: Watched | None = None
        self._watch: asyncio.Task[None] | None = None
        self._earlier: Callable[[], None] | None = None

    def watch(self, receive: Receive) -> None:
        """Begin. Galley's own server reports it; with another server, a further task waits for it."""
        owner = getattr(receive, "__self__", None)
        if isinstance(owner, Watched):
            self._watched, self._earlier = owner, owner.on_gone
            owner.on_gone = self._happens
            if owner.gone:
                # Later: a task that is cancelled while it runs is cancelled at its next wait, even if
                # the work is done before that.
                asyncio.get_running_loop().call_soon(self._happens)
            return
        self._watch = asyncio.ensure_future(_disconnected(receive))
        self._watch.add_done_callback(self._ended)

    def end(self) -> None:
        """End: whatever happens from now on cancels nothing."""
        self._task = None
        if self._watched is not None:
            self._watched.on_gone = self._earlier
        if self._watch is not None:
            self._watch.cancel()

    def _ended(self, watch: "asyncio.Task[None]") -> None:
        if not watch.cancelled():
            watch.exception()
            self._happens()

    def _happens(self) -> None:
        if self._task is not None and not self.happened:
            self.happened = True
            self._task.cancel()


async def begun(receive: Receive, parts: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Wait for the first of an answer's parts, and return all of them.

    An error before the first part can still be reported by the status line.

    Raises:
        ClientGone: the client hung up first.
        Exception: whatever the generator raises.
    """

    async def first() -> T:
        return await anext(parts)

    found = await while_connected(receive, first())

    async def all_parts() -> AsyncGenerator[T, None]:
        async with aclosing(parts):
            yield found
            async for part in parts:
                yield part

    return all_parts()


class PartStream(Response, Generic[T]):
    """An answer that is sent in parts while it is made.

    ``close`` is always called, even if the client hung up before the first part. Subclasses determine how
    parts are encoded, and what becomes of an error midway.
    """

    probe = b""
    """Bytes that clients ignore, if there are any.

    See :meth:`galley.server.http_protocol.HttpProtocol.eof_received`.
    """
    ending = b""
    """Bytes after the last part."""

    def __init__(
        self,
        parts: AsyncGenerator[T, None],
        close: Callable[[], None],
        *,
        media_type: str | None = None,
    ) -> None:
        # X-Accel-Buffering: nginx would otherwise buffer parts before passing them on.
        super().__init__(media_type=media_type, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._parts = parts
        self._close = close

    def encoded(self, part: T) -> bytes:
        """Encode one part."""
        raise NotImplementedError

    def cut_short(self, error: Exception, request_id: str) -> bytes:
        """Return the last bytes of an answer that cannot continue, or raise to cut the connection.

        The status line has been sent, so it cannot report the error.
        """
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; return when it is complete or the client has hung up."""
        scope["state"]["probe"] = self.probe
        try:
            await while_connected(receive, self._send_all(send, scope))
        except ClientGone:
            scope["state"]["record"]["status"] = CLIENT_GONE
        finally:
            self._close()

    async def _send_all(self, send: Send, scope: Scope) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._parts) as parts:
            await send(start)
            try:
                async for part in parts:
                    await _send_body(send, self.encoded(part))
                if self.ending:
                    await _send_body(send, self.ending)
            except Exception as error:
                api_error = to_api_error(error)
                note_error(scope, api_error)
                scope["state"]["record"]["status"] = api_error.status
                await _send_body(send, self.cut_short(error, scope["state"]["request_id"]))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream(PartStream[Mapping[str, Any]]):
    """Events, each as one ``data:`` line, then ``[DONE]``; an error midway is sent as an event.

    Subclasses for other protocols override how events are encoded.
    """

    media_type = "text/event-stream"
    probe = b":\n\n"
    ending = DONE

    def encoded(self, event: Mapping[str, Any]) -> bytes:
        """Encode one event."""
        return data_event(event)

    def encoded_error(self, error: Exception) -> bytes:
        """Encode ``error`` as the last event of a stream that cannot continue."""
        return data_event(envelope(error))

    def cut_short(self, error: Exception, request_id: str) -> bytes:
        """See :class:`PartStream`."""
        if not isinstance(error, GalleyError):
            log.error("stream %s failed", request_id, exc_info=error)
        return self.encoded_error(error)


class NamedEventStream(EventStream):
    """Events whose names are their types; no marker follows the last.

    Attributes:
        sent: number of events sent.
    """

    ending = b""
    sent = 0

    def encoded(self, event: Mapping[str, Any]) -> bytes:
        """Encode one event, preceded by its name."""
        self.sent += 1
        return b"event: " + str(event["type"]).encode() + b"\n" + data_event(event)


class Answer(Protocol):
    """The answer to a request, and the way to end the work on it."""

    def events(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the answer as it is generated."""

    async def whole(self) -> Mapping[str, Any]:
        """Return the answer when it is complete."""

    def close(self) -> None:
        """Cancel any work still running. Idempotent."""


async def respond(
    request: Request, answer: Answer, stream: type[EventStream] | None = None
) -> Response:
    """Return an answer as ``stream``, or whole if that is None; the answer is always closed."""
    if stream is not None:
        return stream(answer.events(), answer.close)
    try:
        return LargeJson(await while_connected(request.receive, answer.whole()))
    finally:
        answer.close()


def data_event(value: Mapping[str, Any]) -> bytes:
    """Encode ``value`` as a server-sent event without a name."""
    data = msgspec.json.encode(value)
    # These do not end lines in an event stream, but Python clients that split text with
    # str.splitlines (such as httpx's iter_lines) would split the event. They occur only in strings.
    if not data.isascii():
        for character, escaped in _LINE_ENDS:
            data = data.replace(character, escaped)
    return b"data: " + data + b"\n\n"


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
