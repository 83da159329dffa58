"""``POST /v1/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.http.admit import admit
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, respond, while_connected
from galley.protocols.openai.completions.answers import ENDPOINT, Completion, CompletionAnswer
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.prefiller import prefilled


def routes(models: Registry) -> list[Operation]:
    """Return the route, served by ``models``."""

    async def plain_completions(request: Request) -> Response:
        """Continue prompts. In a text prompt, special tokens' text is encoded as those tokens."""
        parsed, caller, served = await admit(
            models, request, CompletionRequest, "generate", prompt=lambda parsed: parsed.prompt
        )
        prompt = prefilled(request.headers, parsed, served, ENDPOINT, caller.deadline)
        parsed = await while_connected(request.receive, prompt)
        start = CompletionAnswer.start(served, parsed, caller)
        answer = await while_connected(request.receive, start)
        return await respond(request, answer, EventStream if parsed.stream else None)

    stream = {"text/event-stream": {"description": "Events, each with JSON as its data."}}
    return [
        Operation(
            "POST",
            ENDPOINT,
            plain_completions,
            tag="generation",
            body=CompletionRequest,
            answers={200: {"application/json": Completion, **stream}},
            about="The completions; with `stream`, chunks of them as server-sent events",
        ),
    ]
