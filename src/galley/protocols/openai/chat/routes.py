"""``POST /v1/chat/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.http.admit import admit
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, respond, while_connected
from galley.protocols.openai.chat.answers import ENDPOINT, ChatAnswer, ChatCompletion
from galley.protocols.openai.chat.schemas import ChatRequest
from galley.protocols.openai.prefiller import prefilled


def routes(models: Registry) -> list[Operation]:
    """Return the route, served by ``models``."""

    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        parsed, caller, served = await admit(
            models, request, ChatRequest, "generate", prompt=lambda parsed: parsed.messages
        )
        prompt = prefilled(request.headers, parsed, served, ENDPOINT, caller.deadline)
        parsed = await while_connected(request.receive, prompt)
        start = ChatAnswer.start(served, parsed, caller)
        answer = await while_connected(request.receive, start)
        return await respond(request, answer, EventStream if parsed.stream else None)

    stream = {"text/event-stream": {"description": "Events, each with JSON as its data."}}
    return [
        Operation(
            "POST",
            ENDPOINT,
            chat_completions,
            tag="generation",
            body=ChatRequest,
            answers={200: {"application/json": ChatCompletion, **stream}},
            about="The answer; with `stream`, chunks of it as server-sent events",
        ),
    ]
