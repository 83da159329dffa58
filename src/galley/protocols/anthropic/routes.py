"""Anthropic's API: ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.chat import prompt_of
from galley.gateway.registry import Registry
from galley.protocols.anthropic import answers as anthropic_answer
from galley.protocols.anthropic.answers import (
    AnthropicAnswer,
    AnthropicError,
    InputTokens,
    MessageAnswer,
    envelope,
    named_as_given,
)
from galley.protocols.anthropic.schemas import CountRequest, MessagesRequest
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of, note_prompt
from galley.protocols.http.json_answers import Json, LargeJson
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import NamedEventStream, while_connected


class _Operation(Operation):
    error = AnthropicError


def routes(models: Registry) -> list[Operation]:
    """The routes, answered by ``models``."""
    max_bytes = models.settings.max_body_bytes
    timeout = models.settings.request_timeout

    async def messages(request: Request) -> Response:
        """Answer a conversation, as Anthropic's Messages API does."""
        caller = caller_of(request, timeout=timeout)
        models.expect("generate", caller)
        asked = await body.read(request, MessagesRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.messages, models.settings)
        find = models.find(asked.model, "generate", caller)
        served = await while_connected(request.receive, find)
        start = MessageAnswer.start(served, asked, caller)
        answer = await while_connected(request.receive, start)
        if asked.stream:
            return _Events(answer.events(), answer.close)
        try:
            return LargeJson(await while_connected(request.receive, answer.whole()))
        finally:
            answer.close()

    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has."""
        models.expect("generate")
        asked = await body.read(request, CountRequest, max_bytes=max_bytes)
        find = models.find(asked.model, "generate")
        backend = (await while_connected(request.receive, find)).backend()
        with named_as_given():
            share = caller_of(request).share
            prompt = await prompt_of(backend, asked.conversation(), share)
        answer: InputTokens = {"input_tokens": len(prompt)}
        return Json(answer)

    stream = {"text/event-stream": {"description": "Named events, each with JSON as its data."}}
    return [
        _Operation(
            "POST",
            anthropic_answer.ENDPOINT,
            messages,
            tag="Anthropic",
            body=MessagesRequest,
            answers={200: {"application/json": AnthropicAnswer, **stream}},
            about="The answer; with `stream`, events of it",
        ),
        _Operation(
            "POST",
            f"{anthropic_answer.ENDPOINT}/count_tokens",
            count_tokens,
            tag="Anthropic",
            body=CountRequest,
            answers={200: InputTokens},
        ),
    ]


class _Events(NamedEventStream):
    def encoded_error(self, error: Exception) -> bytes:
        """See :class:`galley.protocols.http.sse.EventStream`."""
        return self.encoded(envelope(error))
