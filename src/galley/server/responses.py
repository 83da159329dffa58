"""OpenAI's Responses API: ``POST /v1/responses``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.api import response_answer
from galley.api.response_answer import ResponseAnswer, ResponseObject, error_event
from galley.api.response_request import ResponseRequest
from galley.gateway.registry import Registry
from galley.server import body
from galley.server.access import caller_of, note_prompt
from galley.server.answers import LargeJson
from galley.server.openapi import Operation
from galley.server.sse import NamedEventStream, while_connected


def routes(models: Registry) -> list[Operation]:
    """The route, answered by ``models``."""
    max_bytes = models.settings.max_body_bytes
    timeout = models.settings.request_timeout

    async def responses(request: Request) -> Response:
        """Answer a conversation, as OpenAI's Responses API does."""
        caller = caller_of(request, timeout=timeout)
        models.expect("generate", caller)
        asked = await body.read(request, ResponseRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.input, models.settings)
        find = models.find(asked.model, "generate", caller)
        served = await while_connected(request.receive, find)
        answer = await while_connected(request.receive, ResponseAnswer.start(served, asked, caller))
        if asked.stream:
            return _Events(answer.events(), answer.close)
        try:
            return LargeJson(await while_connected(request.receive, answer.whole()))
        finally:
            answer.close()

    stream = {"text/event-stream": {"description": "Named events, each with JSON as its data."}}
    return [
        Operation(
            "POST",
            response_answer.ENDPOINT,
            responses,
            tag="generation",
            body=ResponseRequest,
            answers={200: {"application/json": ResponseObject, **stream}},
            about="The answer; with `stream`, events of it",
        )
    ]


class _Events(NamedEventStream):
    def encoded_error(self, error: Exception) -> bytes:
        """See :class:`galley.server.sse.EventStream`."""
        return self.encoded(error_event(error) | {"sequence_number": self.sent})
