"""One line of a batch: checked and answered as over HTTP, by ``galley.protocols`` through the gateway."""

import asyncio
import logging
import secrets
from typing import Any, Literal

import msgspec

from galley.cli.batch_files import result_id
from galley.errors import EngineFailed, RequestError, Unavailable
from galley.gateway.caller import Caller
from galley.gateway.registry import Registry
from galley.protocols.common.errors import envelope, to_api_error
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.messages import Strict
from galley.protocols.common.validate import validate
from galley.protocols.openai.chat.answers import ChatAnswer
from galley.protocols.openai.chat.schemas import ChatRequest
from galley.protocols.openai.completions.answers import CompletionAnswer
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.embeddings.answers import EMBEDDINGS, embeddings
from galley.protocols.openai.embeddings.schemas import EmbeddingsRequest
from galley.service.streams import LONGEST_WAIT

log = logging.getLogger("galley.batch")


class BatchLine(Strict, frozen=True, kw_only=True):
    """One request of OpenAI's batch format."""

    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    body: dict[str, Any]


async def answer(
    models: Registry, number: int, text: bytes, custom_id: str | None
) -> dict[str, Any]:
    """Return the result line for line ``number``: an answer, or its error.

    Args:
        custom_id: the line's, as :func:`galley.cli.batch_files.scan` found it.

    Raises:
        EngineFailed: no line can be answered any more.
    """
    result = {"id": result_id(number), "custom_id": custom_id, "response": None, "error": None}
    try:
        line = validate(BatchLine, parse_json(text))
        if custom_id is None:
            raise RequestError("custom_id is not valid Unicode")
    except RequestError as error:
        return {**result, "error": {"code": "invalid_line", "message": f"line {number}: {error}"}}
    request_id = secrets.token_hex(12)
    status, body = await _respond(models, line, request_id)
    return {
        **result,
        "response": {"status_code": status, "request_id": request_id, "body": body},
    }


async def _respond(
    models: Registry, line: BatchLine, request_id: str
) -> tuple[int, dict[str, Any]]:
    try:
        return 200, await _complete(models, line, Caller(request_id, streams=False))
    except EngineFailed:
        raise
    except Exception as error:  # one line's failure is that line's result, as over HTTP
        models.expect()  # raises if the engine will not come back
        api_error = to_api_error(error)
        if api_error.status >= 500:
            log.exception("request %s failed", request_id)
        return api_error.status, dict(envelope(api_error))


async def _complete(models: Registry, line: BatchLine, caller: Caller) -> dict[str, Any]:
    while True:
        try:
            if line.url == EMBEDDINGS:
                return await _embed(models, line, caller)
            answer = await _start(models, line, caller)
            try:
                whole = await answer.whole()
                # Parts of the answer may already be JSON.
                plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
                return plain
            finally:
                answer.close()
        except Unavailable as error:
            await asyncio.sleep(min(error.retry_after, LONGEST_WAIT))


async def _embed(models: Registry, line: BatchLine, caller: Caller) -> dict[str, Any]:
    request = validate(EmbeddingsRequest, line.body)
    served = await models.find(request.model, "embed")
    return dict(await embeddings(served, request, caller))


async def _start(
    models: Registry, line: BatchLine, caller: Caller
) -> ChatAnswer | CompletionAnswer:
    if line.url == "/v1/chat/completions":
        request = validate(ChatRequest, line.body)
        _refuse_stream(request.stream)
        return await ChatAnswer.start(
            await models.find(request.model, "generate", caller), request, caller
        )
    prompt = validate(CompletionRequest, line.body)
    _refuse_stream(prompt.stream)
    served = await models.find(prompt.model, "generate", caller)
    return await CompletionAnswer.start(served, prompt, caller)


def _refuse_stream(stream: bool | None) -> None:
    if stream:
        raise RequestError("stream is not supported in a batch; leave it out", param="stream")
