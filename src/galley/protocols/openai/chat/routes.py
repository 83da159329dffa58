"""``POST /v1/chat/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of, note_prompt
from galley.protocols.http.json_answers import LargeJson
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, while_connected
from galley.protocols.openai.chat.answers import ENDPOINT, ChatAnswer, ChatCompletion
from galley.protocols.openai.chat.schemas import ChatRequest


def routes(models: Registry) -> list[Operation]:
    """The route, answered by ``models``."""
    max_bytes = models.settings.max_body_bytes
    timeout = models.settings.request_timeout

    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        caller = caller_of(request, timeout=timeout)
        models.expect("generate", caller)
        asked = await body.read(request, ChatRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.messages, models.settings)
        find = models.find(asked.model, "generate", caller, priority=asked.priority or 0)
        served = await while_connected(request.receive, find)
        answer = await while_connected(request.receive, ChatAnswer.start(served, asked, caller))
        if asked.stream:
            return EventStream(answer.chunks(), answer.close)
        try:
            return LargeJson(await while_connected(request.receive, answer.whole()))
        finally:
            answer.close()

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
