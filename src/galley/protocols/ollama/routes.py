"""Ollama's API: ``/api/chat``, ``/api/generate``, and the listing and management of models."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from galley import __version__
from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.gateway.registry import Registry
from galley.protocols.http import body
from galley.protocols.http.admit import read
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, respond, while_connected
from galley.protocols.ollama import answers as ollama_answer
from galley.protocols.ollama.answers import (
    OllamaAnswer,
    OllamaError,
    OllamaGeneration,
    envelope,
    without_prompt,
)
from galley.protocols.ollama.models import (
    OllamaModels,
    OllamaShown,
    listed,
    listed_as,
    shown,
    time_text,
    works_with_text,
)
from galley.protocols.ollama.pull import (
    OllamaDeleteRequest,
    OllamaProgress,
    OllamaPull,
    OllamaPullRequest,
    delete,
)
from galley.protocols.ollama.schemas import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)

_LATEST: Final = ":latest"
"""Tag that Ollama's clients add to names without one."""

_FOREVER: Final = "9999-12-31T23:59:59Z"
"""``expires_at`` of models that were not loaded on request, which stay loaded."""


API_VERSION: Final = "0.12.0"
"""Version of Ollama whose API this is. Editors refuse servers whose version is older than some such."""


class OllamaVersion(TypedDict):
    """The version of Ollama whose API this is, and that of this server."""

    version: str
    galley: str


class OllamaOperation(Operation):
    """A route whose errors are in Ollama's form."""

    error = OllamaError


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""
    max_bytes = models.settings.max_body_bytes

    async def chat(request: Request) -> Response:
        """Answer a conversation, as Ollama does."""
        parsed, caller = await read(
            models, request, OllamaChatRequest, "generate", prompt=lambda parsed: parsed.messages
        )
        return await _answer(models, request, parsed, caller, has_input=bool(parsed.messages))

    async def generate(request: Request) -> Response:
        """Answer a prompt, as Ollama does."""
        parsed, caller = await read(
            models, request, OllamaGenerateRequest, "generate", prompt=lambda parsed: parsed.prompt
        )
        return await _answer(models, request, parsed, caller, has_input=bool(parsed.prompt))

    async def tags(_: Request) -> Response:
        """List the served models, as Ollama does."""
        answer: OllamaModels = {
            "models": [
                *(listed(served) for served in models if works_with_text(served)),
                *(listed_as(derived, models) for derived in models.derived.values()),
            ]
        }
        return Json(answer)

    async def running(_: Request) -> Response:
        """List the loaded models."""
        answer: OllamaModels = {
            "models": [
                {
                    **listed(served),
                    "expires_at": _FOREVER
                    if served.expires_at is None
                    else time_text(served.expires_at),
                    "size_vram": 0,
                    "context_length": served.backend().engine.info.require_text().max_model_len,
                }
                for served in models
                if works_with_text(served) and (served.is_loaded or not served.on_request)
            ]
        }
        return Json(answer)

    async def show(request: Request) -> Response:
        """Show details of a model."""
        parsed = await body.read(request, OllamaShowRequest, max_bytes=max_bytes)
        name = name_of(models, _named(parsed))
        served = await while_connected(request.receive, models.find(name))
        return Json(shown(served, models.derived.get(name)))

    async def pull(request: Request) -> Response:
        """Download a model from the hub."""
        parsed = await body.read(request, OllamaPullRequest, max_bytes=max_bytes)
        download = OllamaPull(models, _named(parsed))
        return await respond(request, download, _Lines if parsed.streamed else None)

    async def delete_model(request: Request) -> Response:
        """Remove a downloaded model."""
        parsed = await body.read(request, OllamaDeleteRequest, max_bytes=max_bytes)
        return Json(await delete(models, _named(parsed)))

    async def version(_: Request) -> Response:
        """Return the version of the API and of the server."""
        answer: OllamaVersion = {"version": API_VERSION, "galley": __version__}
        return Json(answer)

    lines = {
        "application/x-ndjson": {"description": "Chunks of the answer, one JSON object per line."}
    }
    answers = {200: {"application/json": OllamaAnswer, **lines}}
    about = "The answer; unless `stream` is false, in chunks"
    return [
        OllamaOperation(
            "POST",
            ollama_answer.CHAT,
            chat,
            tag="Ollama",
            body=OllamaChatRequest,
            answers=answers,
            about=about,
        ),
        OllamaOperation(
            "POST",
            ollama_answer.GENERATE,
            generate,
            tag="Ollama",
            body=OllamaGenerateRequest,
            answers=answers,
            about=about,
        ),
        OllamaOperation("GET", "/api/tags", tags, tag="Ollama", answers={200: OllamaModels}),
        OllamaOperation("GET", "/api/ps", running, tag="Ollama", answers={200: OllamaModels}),
        OllamaOperation(
            "POST",
            "/api/show",
            show,
            tag="Ollama",
            body=OllamaShowRequest,
            answers={200: OllamaShown},
        ),
        OllamaOperation(
            "GET",
            "/api/version",
            version,
            tag="Ollama",
            answers={200: OllamaVersion},
        ),
        OllamaOperation(
            "POST",
            "/api/pull",
            pull,
            tag="Ollama",
            body=OllamaPullRequest,
            answers={200: {"application/json": OllamaProgress, **lines}},
            about="Success; unless `stream` is false, the progress, line by line",
        ),
        OllamaOperation(
            "DELETE",
            "/api/delete",
            delete_model,
            tag="Ollama",
            body=OllamaDeleteRequest,
            answers={200: OllamaProgress},
            errors={409},
        ),
    ]


def _named(parsed: OllamaShowRequest | OllamaPullRequest | OllamaDeleteRequest) -> str:
    name = parsed.model or parsed.name
    if not name:
        raise RequestError("Missing field 'model'", param="model")
    return name


def name_of(models: Registry, parsed: str) -> str:
    """Return the model's name here, without the tag that Ollama's clients may have added."""
    return parsed if models.knows(parsed) else parsed.removesuffix(_LATEST)


async def _answer(
    models: Registry,
    request: Request,
    parsed: OllamaChatRequest | OllamaGenerateRequest,
    caller: Caller,
    *,
    has_input: bool,
) -> Response:
    """Answer a request; one without a prompt only has the model loaded or unloaded."""
    name, seconds = name_of(models, parsed.model), parsed.kept_seconds
    if not has_input and seconds == 0:
        served = models.unload_soon(name, "generate", caller)
        reason: Literal["load", "unload"] = "unload" if served.on_request else "load"
        answer = without_prompt(parsed, reason, parsed.warnings())
        return respond_at_once(answer, streamed=parsed.streamed)
    served = await while_connected(request.receive, models.find(name, "generate", caller))
    served.kept.keep_for(seconds)
    if not has_input:
        warnings = parsed.warnings(served.backend().engine.info.require_text().max_model_len)
        answer = without_prompt(parsed, "load", warnings)
        return respond_at_once(answer, streamed=parsed.streamed)
    start = OllamaGeneration.start(served, parsed, caller)
    generation = await while_connected(request.receive, start)
    return await respond(request, generation, _Lines if parsed.streamed else None)


def respond_at_once(answer: Mapping[str, Any], *, streamed: bool) -> Response:
    """Return the response for a complete answer: JSON, or the only line of a stream."""
    if not streamed:
        return Json(answer)
    return Response(msgspec.json.encode(answer) + b"\n", media_type=_Lines.media_type)


class _Lines(EventStream):
    """One JSON object per line; no marker follows the last."""

    media_type = "application/x-ndjson"
    probe = b" "
    ending = b""

    def encoded(self, event: Mapping[str, Any]) -> bytes:
        """Encode one event as a line."""
        return msgspec.json.encode(event) + b"\n"

    def encoded_error(self, error: Exception) -> bytes:
        """Encode ``error`` as the last line, in Ollama's form."""
        return self.encoded(envelope(error))
