"""``POST /v1/chat/completions`` and ``/v1/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.api import chat, completions
from galley.api.chat import ChatAnswer
from galley.api.completions import CompletionAnswer
from galley.api.responses import ChatCompletion, Completion
from galley.api.schemas import ChatRequest, CompletionRequest
from galley.gateway.registry import Registry
from galley.server import body
from galley.server.access import caller_of, note_prompt
from galley.server.answers import LargeJson
from galley.server.openapi import Operation
from galley.server.sse import EventStream, while_connected


def routes(models: Registry) -> list[Operation]:
    """The routes, answered by ``models``."""
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
        return await _respond(request, answer, stream=bool(asked.stream))

    async def plain_completions(request: Request) -> Response:
        """Continue prompts. In a text, special tokens' text means those tokens."""
        caller = caller_of(request, timeout=timeout)
        models.expect("generate", caller)
        asked = await body.read(request, CompletionRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.prompt, models.settings)
        find = models.find(asked.model, "generate", caller, priority=asked.priority or 0)
        served = await while_connected(request.receive, find)
        start = CompletionAnswer.start(served, asked, caller)
        answer = await while_connected(request.receive, start)
        return await _respond(request, answer, stream=bool(asked.stream))

    stream = {"text/event-stream": {"description": "Events, each with JSON as its data."}}
    return [
        Operation(
            "POST",
            chat.ENDPOINT,
            chat_completions,
            tag="generation",
            body=ChatRequest,
            answers={200: {"application/json": ChatCompletion, **stream}},
            about="The answer; with `stream`, chunks of it as server-sent events",
        ),
        Operation(
            "POST",
            completions.ENDPOINT,
            plain_completions,
            tag="generation",
            body=CompletionRequest,
            answers={200: {"application/json": Completion, **stream}},
            about="The completions; with `stream`, chunks of them as server-sent events",
        ),
    ]


async def _respond(
    request: Request, answer: ChatAnswer | CompletionAnswer, *, stream: bool
) -> Response:
    if stream:
        return EventStream(answer.chunks(), answer.close)
    try:
        return LargeJson(await while_connected(request.receive, answer.whole()))
    finally:
        answer.close()
