"""One WebSocket to ``/v1/responses``: requests, the events of their answers, and what they continue.

Requests with the same ``stream_id`` form a lane and are answered one after another; lanes are answered at
the same time. Each request counts as one of its own: in limits, metrics, the log, the audit log and traces.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Literal, TypeGuard

import msgspec

from galley.errors import GalleyError, QueueFull, RequestError
from galley.gateway.caller import Caller
from galley.gateway.lifecycle import RETRY_SECONDS, Lifecycle
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError, envelope, to_api_error
from galley.protocols.common.validate import validate
from galley.protocols.http.body import in_thread_if_large
from galley.protocols.http.caller import note_prompt
from galley.protocols.http.errors import CLIENT_GONE, ClientGone
from galley.protocols.http.websocket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL,
    NOT_ALLOWED,
    EventSocket,
)
from galley.protocols.openai.responses.answers import ResponseAnswer
from galley.protocols.openai.responses.lanes import ConnectionResponses, Lane
from galley.protocols.openai.responses.schemas import ResponseRequest
from galley.protocols.openai.responses.store import Responses

log = logging.getLogger("galley.server")

MOST_LANES: Final = 32
MOST_AT_A_TIME: Final = 16
"""Lanes with a name, and responses in progress, of each connection: as in OpenAI's API."""

MOST_UNFINISHED: Final = 64
MOST_INVALID: Final = 64
"""Bounds for each connection: unfinished requests, and invalid events in a row."""

_OK: Final = 200
_CREATE: Final = "response.create"
_STEER: Final = "response.steer"
_STREAM_ID: Final = re.compile(r"[\w.-]{1,256}", re.ASCII)

Record = Callable[[Mapping[str, Any], int], None]
"""Records a request that has ended: its own part of the connection's state, and its status."""


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What an event has besides the request.

    Attributes:
        stream_id: the lane; None: that without a name.
        generate: whether to answer; otherwise the request only prepares for those that continue it.
    """

    type: Literal["response.create"]
    stream_id: str | None = None
    generate: bool | None = None


class Connection:
    """A connected client, its lanes, and the responses that they can continue."""

    def __init__(
        self,
        socket: EventSocket,
        models: Registry,
        caller: Caller,
        store: Responses,
        kept: ConnectionResponses,
        record: Record,
    ) -> None:
        """Create the connection.

        Args:
            socket: the accepted WebSocket.
            models: the models that answer.
            caller: who is connected.
            store: the stored responses.
            kept: the connection's own.
            record: records each request.
        """
        self._socket = socket
        self._models = models
        self._caller = caller
        self._store = store
        self._kept = kept
        self._record = record
        self._last: dict[str | None, asyncio.Task[None]] = {}
        """Lane -> the task of its last request."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(MOST_AT_A_TIME)
        self._waiting_bytes = 0
        self._quiet_since = time.monotonic()
        """When the last request came, or the last answer ended."""
        self._lost = asyncio.Event()

    async def serve(self, lifecycle: Lifecycle) -> None:
        """Serve the connection until it ends."""
        code, reason = NORMAL, ""
        try:
            code, reason = await self._until_over(lifecycle)
        except ClientGone:
            pass
        except ApiError as error:  # the client may send no more
            code = NOT_ALLOWED
            with suppress(ClientGone):
                await self._refuse(error, None)
            if self._tasks:
                await asyncio.wait(self._tasks)
        except Exception:
            log.exception("the WebSocket of %s failed", self._caller.request_id)
            code = INTERNAL_ERROR
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._kept.close()
        await self._socket.close(code, reason)

    async def _until_over(self, lifecycle: Lifecycle) -> tuple[int, str]:
        """Serve until nothing more is to be answered, and return the close code and reason.

        Raises:
            ClientGone: the client hung up, or reads too slowly.
            ApiError: the client may send no more.
        """
        listening = asyncio.create_task(self._listen())
        draining = asyncio.create_task(lifecycle.draining())
        losing = asyncio.create_task(self._lost.wait())
        ends = {listening, draining, losing}
        most = self._models.settings.responses_websocket_seconds
        try:
            await asyncio.wait(ends, timeout=most, return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                raise ClientGone("the client disconnected")
            if listening.done():
                return NORMAL, listening.result()
            listening.cancel()
            await asyncio.wait({listening})
            if self._tasks:
                await asyncio.wait(self._tasks)
            if draining.done():
                return GOING_AWAY, "the server is shutting down"
            await self._refuse(
                ApiError(
                    400,
                    f"The connection has been open for {most} seconds; open another one",
                    code="websocket_connection_limit_reached",
                ),
                None,
            )
            return NORMAL, "open for too long"
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _listen(self) -> str:
        """Begin the client's requests until it is silent or gone; return the reason."""
        idle = self._models.settings.live_idle_seconds
        invalid = 0
        while True:
            left = idle if self._tasks else self._quiet_since + idle - time.monotonic()
            if left <= 0:
                return f"nothing received for {idle:g} s"
            event: dict[str, Any] = {}
            try:
                received = await self._socket.receive(left)
                if received is None:
                    return ""
                event, self._quiet_since = received, time.monotonic()
                work = partial(_request_of, event)
                self._begin(*await in_thread_if_large(self._socket.received, work))
                invalid = 0
            except TimeoutError:
                continue
            except (RequestError, QueueFull) as error:
                # Each is logged and answered, which costs more than sending it.
                invalid += 1
                if invalid > MOST_INVALID:
                    raise ApiError(
                        400, f"More than {MOST_INVALID} events in a row were not valid requests"
                    ) from None
                caller = self._caller.again(secrets.token_hex(12))
                lane = event.get("stream_id")
                lane = lane if _is_stream_id(lane) else None
                await self._fail(error, caller, lane, event.get("previous_response_id"))

    def _begin(self, turn: _Turn, request: ResponseRequest) -> None:
        """Begin a request, or have it wait for the one before it in its lane.

        Raises:
            RequestError: the connection has too many lanes.
            QueueFull: too many requests of the connection are unfinished.
        """
        if turn.stream_id is not None and turn.stream_id not in self._last:
            named = sum(name is not None for name in self._last)
            if named >= MOST_LANES:
                raise RequestError(
                    f"stream_id: a connection has at most {MOST_LANES} streams",
                    param="stream_id",
                    code="websocket_stream_limit_reached",
                )
        size, settings = self._socket.received, self._models.settings
        if len(self._tasks) >= MOST_UNFINISHED or (
            self._tasks and self._waiting_bytes + size > settings.max_body_bytes
        ):
            raise QueueFull(
                f"{len(self._tasks)} requests of this connection are unfinished; at most "
                f"{MOST_UNFINISHED} may be, and those that wait may have {settings.max_body_bytes} bytes "
                "(--max-body-bytes)",
                retry_after=RETRY_SECONDS,
            )
        self._waiting_bytes += size
        before = self._last.get(turn.stream_id)
        task = asyncio.create_task(self._take_turn(turn, request, size, before))
        self._last[turn.stream_id] = task
        self._tasks.add(task)
        task.add_done_callback(self._turn_over)

    def _turn_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._quiet_since = time.monotonic()

    @asynccontextmanager
    async def _place(
        self, size: int, before: "asyncio.Task[None] | None"
    ) -> AsyncGenerator[None, None]:
        """Wait for the request before in the lane, and for a place among those that are answered."""
        try:
            if before is not None and not before.done():
                await asyncio.wait({before})
            await self._places.acquire()
        finally:
            self._waiting_bytes -= size
        try:
            yield
        finally:
            self._places.release()

    async def _take_turn(
        self,
        turn: _Turn,
        request: ResponseRequest,
        size: int,
        before: "asyncio.Task[None] | None",
    ) -> None:
        """Answer a request when it is its turn."""
        caller = self._caller.again(secrets.token_hex(12))
        try:
            async with self._place(size, before):
                caller = self._caller.again(caller.request_id)  # its time begins with its turn
                await self._answer(turn, request, caller)
                self._ended(caller, _OK)
        except (ClientGone, asyncio.CancelledError):
            self._lost.set()
            self._ended(caller, CLIENT_GONE)
        except Exception as error:
            if not isinstance(error, GalleyError):
                log.exception("response %s failed", caller.request_id)
            await self._fail(error, caller, turn.stream_id, request.previous_response_id)

    async def _answer(self, turn: _Turn, request: ResponseRequest, caller: Caller) -> None:
        self._models.expect("generate", caller)
        note_prompt(caller, request.input, self._models.settings)
        served = await self._models.find(request.model, "generate", caller)
        lane = Lane(
            find=self._kept.find,
            keep=partial(self._kept.keep, turn.stream_id),
            only_prepares=turn.generate is False,
        )
        answer = await ResponseAnswer.start(served, request, caller, self._store, lane=lane)
        try:
            async with aclosing(answer.events()) as events:
                async for event in events:
                    await self._send(event, turn.stream_id)
        finally:
            answer.close()

    async def _fail(
        self, error: Exception, caller: Caller, stream_id: str | None, previous: object
    ) -> None:
        """Report a request that failed; what it would have continued is forgotten.

        A client that does not know how far its request came sends the whole conversation again.
        """
        reported = to_api_error(error)
        caller.record["error"] = reported.code or reported.type
        if isinstance(previous, str):
            self._kept.forget(previous)
        try:
            await self._refuse(error, stream_id)
        except ClientGone:
            self._lost.set()
        self._ended(caller, reported.status)

    def _ended(self, caller: Caller, status: int) -> None:
        part = {
            "request_id": caller.request_id,
            "arrived": caller.arrived,
            "record": caller.record,
            "trace": caller.trace,
        }
        self._record(part, status)

    async def _refuse(self, error: Exception, stream_id: str | None) -> None:
        reported = to_api_error(error)
        headers = {"headers": reported.headers} if reported.headers else {}
        detail = {**envelope(error)["error"], **headers}
        await self._send({"type": "error", "status": reported.status, "error": detail}, stream_id)

    async def _send(self, event: Mapping[str, Any], stream_id: str | None) -> None:
        lane = {} if stream_id is None else {"stream_id": stream_id}
        await self._socket.send({**event, **lane})


def _request_of(event: dict[str, Any]) -> tuple[_Turn, ResponseRequest]:
    """Return what an event requests.

    Raises:
        RequestError: it is not a valid request.
    """
    kind = event.get("type")
    if kind == _STEER:
        raise RequestError(
            "response.steer is not supported; send the input with the next response.create",
            param="type",
            code="steering_not_supported",
        )
    if kind != _CREATE:
        raise RequestError(f"Unknown event type {str(kind)[:64]!r}; known: {_CREATE}", param="type")
    if not _is_stream_id(lane := event.get("stream_id")) and lane is not None:
        raise RequestError(
            f"stream_id is {lane!r:.80}; it takes 1 to 256 letters, digits, '_', '-' and '.'",
            param="stream_id",
            code="invalid_stream_id",
        )
    own = {name: event[name] for name in _Turn.__struct_fields__ if name in event}
    rest = {name: value for name, value in event.items() if name not in own}
    turn = validate(_Turn, own)
    request = validate(ResponseRequest, rest)
    if request.stream is False:
        raise RequestError("stream: over a WebSocket, every answer is streamed", param="stream")
    return turn, msgspec.structs.replace(request, stream=True)


def _is_stream_id(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and _STREAM_ID.fullmatch(given) is not None
