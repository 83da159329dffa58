"""The routes of the generate extension."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway import repository
from galley.gateway.registry import Registry
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of, note_prompt
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, data_event, respond, while_connected
from galley.protocols.oip.generate.answers import GenerateAnswer, GenerateRequest, GenerateResponse
from galley.protocols.oip.messages import envelope
from galley.protocols.oip.routes import PREFIX, OipOperation


class _Events(EventStream):
    """Events without a marker after the last, and errors in the protocol's form."""

    ending = b""

    def encoded_error(self, error: Exception) -> bytes:
        """Encode ``error`` as the last event of a stream that cannot continue."""
        fields: Mapping[str, Any] = envelope(error)
        return data_event(fields)


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def answer(request: Request, *, stream: bool) -> Response:
        settings = models.settings
        caller = caller_of(request, timeout=settings.request_timeout)
        models.expect("generate", caller)
        path = request.path_params
        name = repository.find_version(models, path["model"], path.get("version", "")).name
        parsed = await body.read(request, GenerateRequest, max_bytes=settings.max_body_bytes)
        note_prompt(caller, parsed.text_input, settings)
        caller.streams = stream
        served = await while_connected(request.receive, models.find(name, "generate", caller))
        start = GenerateAnswer.start(served, parsed, caller, stream=stream)
        started = await while_connected(request.receive, start)
        return await respond(request, started, _Events if stream else None)

    async def generate(request: Request) -> Response:
        """Continue a text."""
        return await answer(request, stream=False)

    async def generate_stream(request: Request) -> Response:
        """Continue a text; its parts are server-sent events."""
        return await answer(request, stream=True)

    models_path = f"{PREFIX}/models/{{model:path}}"
    events = {"text/event-stream": {"description": "Events, each with JSON as its data."}}
    return [
        OipOperation(
            "POST",
            f"{path}/{handler.__name__}",
            handler,
            tag="generation",
            body=GenerateRequest,
            answers={200: events if handler is generate_stream else GenerateResponse},
        )
        for path in (f"{models_path}/versions/{{version}}", models_path)
        for handler in (generate, generate_stream)
    ]
