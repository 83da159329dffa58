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
from galley.protocols.http.admit import admit, admit_unqueued
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import NamedEventStream, respond, while_connected


class _Operation(Operation):
    error = AnthropicError


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def messages(request: Request) -> Response:
        """Answer a conversation, as Anthropic's Messages API does."""
        parsed, caller, served = await admit(
            models, request, MessagesRequest, "generate", prompt=lambda parsed: parsed.messages
        )
        start = MessageAnswer.start(served, parsed, caller)
        answer = await while_connected(request.receive, start)
        return await respond(request, answer, _Events if parsed.stream else None)

    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a conversation."""
        parsed, caller, served = await admit_unqueued(models, request, CountRequest, "generate")
        with named_as_given():
            prompt = await prompt_of(served.backend(), parsed.conversation(), caller.share)
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
        """Encode ``error`` as the last event, in Anthropic's form."""
        return self.encoded(envelope(error))
