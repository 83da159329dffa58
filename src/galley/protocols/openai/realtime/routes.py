"""``/v1/realtime``: live transcription and conversations over a WebSocket, as OpenAI's sessions."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from galley.errors import GalleyError, QueueFull, RequestError
from galley.gateway.call import Call, opened
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import ApiError
from galley.protocols.http.caller import caller_of
from galley.protocols.http.errors import error_response
from galley.protocols.http.websocket import EventSocket
from galley.protocols.openai.audio.routes import require_extra
from galley.protocols.openai.realtime.connection import Connection
from galley.protocols.openai.realtime.party import QUERY, find_party, talks
from galley.protocols.openai.realtime.response import ENDPOINT


def routes(models: Registry) -> list[BaseRoute]:
    """Return the routes, served by ``models``."""
    places = _Places(models.settings.max_live_streams)

    async def realtime(socket: WebSocket) -> None:
        """Transcribe live audio, or hold a conversation."""
        try:
            places.take()
        except QueueFull as error:
            await socket.send_denial_response(error_response(error))
            return
        try:
            await _serve(models, socket)
        finally:
            places.leave()

    async def no_upgrade(_: Request) -> Response:
        """Refuse a request without a WebSocket, or one to a server without the extra ``speech``."""
        await asyncio.to_thread(require_extra)
        raise ApiError(
            426,
            f"{ENDPOINT} is a WebSocket endpoint; connect with a WebSocket",
            code="upgrade_required",
            headers={"Upgrade": "websocket"},
        )

    return [
        WebSocketRoute(ENDPOINT, realtime),
        Route(ENDPOINT, no_upgrade, include_in_schema=False),
    ]


class _Places:
    """Counts the open live streams, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def take(self) -> None:
        if self._taken >= self._most:
            raise QueueFull(
                f"{self._taken} live streams are open, the maximum is {self._most} "
                "(--max-live-streams)",
                retry_after=RETRY_SECONDS,
            )
        self._taken += 1

    def leave(self) -> None:
        self._taken -= 1


async def _serve(models: Registry, socket: WebSocket) -> None:
    """Serve one connection, from the handshake on."""
    try:
        await asyncio.to_thread(require_extra)
        converses = talks(models, socket.query_params)
        served = await _model_of(models, socket, converses=converses)
        call = Call(served, ENDPOINT, caller_of(socket))
        with opened(call):
            # Check the model's files before answering the handshake.
            model = await asyncio.to_thread(lambda: call.backend.speech_model)
            party = await find_party(models, socket.query_params) if converses else None
    except GalleyError as error:
        await socket.send_denial_response(error_response(error))
        return
    offered = socket.scope.get("subprotocols", [])
    flat = "realtime=v1" in socket.headers.get("openai-beta", "")
    with opened(call):
        await socket.accept("realtime" if "realtime" in offered else None)
        idle = models.settings.live_idle_seconds
        events = EventSocket(socket, socket.scope["state"]["checks"])
        connection = Connection(events, call, model, party, flat=flat, idle_seconds=idle)
    await connection.serve(models.lifecycle)


async def _model_of(models: Registry, socket: WebSocket, *, converses: bool) -> ServedModel:
    if models.settings.redact and converses:
        raise RequestError(
            "This server redacts transcripts (setting redact), which it cannot do for conversations; "
            "connect with intent=transcription, or send the recording to /v1/audio/transcriptions"
        )
    models.expect("transcribe")
    query = socket.query_params
    for name in query:
        if name not in QUERY:
            raise RequestError(f"Unsupported query parameter {name[:64]!r}", param=name[:64])
    if query.get("intent", "transcription") != "transcription":
        raise RequestError(
            f"intent must be transcription, got {query['intent'][:64]!r}", param="intent"
        )
    return await models.find(
        query.get("transcription_model" if converses else "model"), "transcribe"
    )
