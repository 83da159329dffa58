"""OpenAI's Responses API: ``/v1/responses``, over HTTP and WebSockets, and the stored responses."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from galley.errors import GalleyError, RequestError
from galley.gateway.chat import prompt_of
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError
from galley.protocols.http.admit import admit, admit_unqueued
from galley.protocols.http.caller import caller_of
from galley.protocols.http.errors import error_response
from galley.protocols.http.json_answers import Json, LargeJson
from galley.protocols.http.openapi import Operation
from galley.protocols.http.query import read_query
from galley.protocols.http.sse import NamedEventStream, respond, while_connected
from galley.protocols.http.websocket import EventSocket
from galley.protocols.openai.responses import answers as response_answer
from galley.protocols.openai.responses.answers import (
    InputTokenCount,
    ResponseAnswer,
    ResponseObject,
    earlier_items,
    error_event,
    named_as_given,
)
from galley.protocols.openai.responses.compaction import COMPACT, CompactedResponse, compacted
from galley.protocols.openai.responses.connection import Connection
from galley.protocols.openai.responses.lanes import ConnectionResponses, connection_store
from galley.protocols.openai.responses.replay import RetrieveQuery, replayed
from galley.protocols.openai.responses.resuming import Resuming, not_found
from galley.protocols.openai.responses.schemas import (
    ResponseCompactRequest,
    ResponseCountRequest,
    ResponseRequest,
)
from galley.protocols.openai.responses.store import (
    ItemList,
    ItemsQuery,
    ResponseDeleted,
    Responses,
    StoredResponse,
    page_of,
)


class _Stored(Operation):
    query = RetrieveQuery


class _Items(Operation):
    query = ItemsQuery


_ONE: Final = response_answer.ENDPOINT + "/{response_id}"


def routes(models: Registry) -> Sequence[BaseRoute]:
    """Return the routes, served by ``models``, with their own store of responses."""
    resuming = Resuming(models)
    store = resuming.store

    async def responses(request: Request) -> Response:
        """Answer a conversation, as OpenAI's Responses API does."""
        parsed, caller, served = await admit(
            models, request, ResponseRequest, "generate", prompt=lambda parsed: parsed.input
        )
        start = ResponseAnswer.start(served, parsed, caller, store)
        answer = await while_connected(request.receive, start)
        return await respond(request, answer, _Events if parsed.stream else None)

    async def get_response(request: Request) -> Response:
        """Return a stored response; with `stream`, as events."""
        query = read_query(request, RetrieveQuery)
        caller, name = caller_of(request), request.path_params["response_id"]
        if query.stream:
            complete = await resuming.complete(caller, name)
            return _Events(replayed(complete, query.starting_after), lambda: None)
        if query.starting_after is not None:
            raise RequestError("starting_after needs stream=true", param="starting_after")
        found = await resuming.found(caller, name)
        if isinstance(found, dict):
            return Json(found)
        return Response(found.answer, media_type="application/json")

    async def cancel_response(request: Request) -> Response:
        """Refuse to cancel: there are no background responses, and closing a stream ends it."""
        await resuming.found(caller_of(request), request.path_params["response_id"])
        raise ApiError(
            400,
            "Only background responses can be cancelled, which are not supported",
            param="response_id",
        )

    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a conversation."""
        parsed, caller, served = await admit_unqueued(
            models, request, ResponseCountRequest, "generate"
        )
        with named_as_given():
            earlier = await earlier_items(parsed, caller, store)
            prompt = await prompt_of(
                served.backend(), parsed.as_conversation(earlier), caller.share
            )
        answer: InputTokenCount = {
            "object": "response.input_tokens",
            "input_tokens": len(prompt),
        }
        return Json(answer)

    async def compact(request: Request) -> Response:
        """Shorten a conversation to its messages and a summary of the rest."""
        parsed, caller, served = await admit(
            models, request, ResponseCompactRequest, "generate", prompt=lambda parsed: parsed.input
        )
        work = compacted(served, parsed, caller, store)
        return LargeJson(await while_connected(request.receive, work))

    async def delete_response(request: Request) -> Response:
        """Delete a stored response."""
        name = request.path_params["response_id"]
        if not await store.remove(caller_of(request).tenant.name, name):
            raise not_found(name)
        answer: ResponseDeleted = {"id": name, "object": "response", "deleted": True}
        return Json(answer)

    async def list_input_items(request: Request) -> Response:
        """List the input items of a stored response, page by page."""
        query = read_query(request, ItemsQuery)
        return LargeJson(page_of(await _found(store, request), query))

    stream = {"text/event-stream": {"description": "Named events, each with JSON as its data."}}
    return [
        *_connections(models, store),
        Operation(
            "POST",
            response_answer.ENDPOINT,
            responses,
            tag="generation",
            body=ResponseRequest,
            answers={200: {"application/json": ResponseObject, **stream}},
            about="The answer; with `stream`, events of it",
        ),
        Operation(
            "POST",
            response_answer.ENDPOINT + "/input_tokens",
            count_tokens,
            tag="generation",
            body=ResponseCountRequest,
            answers={200: InputTokenCount},
        ),
        Operation(
            "POST",
            COMPACT,
            compact,
            tag="generation",
            body=ResponseCompactRequest,
            answers={200: CompactedResponse},
        ),
        _Stored(
            "GET",
            _ONE,
            get_response,
            tag="generation",
            answers={200: {"application/json": ResponseObject, **stream}},
        ),
        Operation("POST", _ONE + "/cancel", cancel_response, tag="generation", answers={}),
        Operation(
            "DELETE", _ONE, delete_response, tag="generation", answers={200: ResponseDeleted}
        ),
        _Items(
            "GET",
            _ONE + "/input_items",
            list_input_items,
            tag="generation",
            answers={200: ItemList},
        ),
    ]


def _connections(models: Registry, store: Responses) -> Sequence[BaseRoute]:
    """Return the routes of WebSockets."""
    settings = models.settings
    most = settings.responses_websocket_seconds
    kept = connection_store(settings.stored_response_bytes, most)

    async def connected(socket: WebSocket) -> None:
        """Answer conversations on a WebSocket, as OpenAI's Responses API does."""
        try:
            caller = caller_of(socket, timeout=settings.request_timeout)
        except GalleyError as error:
            await socket.send_denial_response(error_response(error))
            return
        await socket.accept()
        own = ConnectionResponses(kept, caller.tenant.name)
        state = socket.scope["state"]
        connection = Connection(
            EventSocket(socket, state["checks"]), models, caller, store, own, state["part_ended"]
        )
        await connection.serve(models.lifecycle)

    return [
        WebSocketRoute(response_answer.ENDPOINT, connected),
        Route(response_answer.ENDPOINT, _no_upgrade, methods=["GET"], include_in_schema=False),
    ]


async def _no_upgrade(_: Request) -> Response:
    """Refuse a GET without a WebSocket, or one to a server without the package for WebSockets."""
    try:
        import websockets  # noqa: F401
    except ImportError:
        raise ApiError(
            501,
            "WebSockets need the package websockets, which is not installed on the server: pip install "
            "'galley-inference[speech]'",
            type="internal_error",
            code="websockets_not_installed",
        ) from None
    raise ApiError(
        426,
        f"GET {response_answer.ENDPOINT} opens a WebSocket; send other requests by POST",
        code="upgrade_required",
        headers={"Upgrade": "websocket"},
    )


async def _found(store: Responses, request: Request) -> StoredResponse:
    name = request.path_params["response_id"]
    found = await store.find(caller_of(request).tenant.name, name)
    if found is None:
        raise not_found(name)
    return found


class _Events(NamedEventStream):
    def encoded_error(self, error: Exception) -> bytes:
        """Encode ``error`` as the last event, in the form of the Responses API."""
        return self.encoded(error_event(error) | {"sequence_number": self.sent})
