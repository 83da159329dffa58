"""``POST /v1/chat/completions``."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from galley.errors import RequestError
from galley.server import body
from galley.server.generate import Generation, Origin, Piece, check_count
from galley.server.registry import Registry
from galley.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    Finish,
    TopLogprob,
)
from galley.server.schemas import ChatRequest
from galley.server.served import ServedModel
from galley.server.sse import EventStream, while_connected
from galley.text.stream import TokenText, describe
from galley.text.tokenizer import Tokenizer
from galley.types import TokenLogprob

ENDPOINT: Final = "/v1/chat/completions"

LOWEST_LOGPROB: Final = -9999.0
"""What OpenAI's API says for minus infinity, which JSON cannot."""


def router(models: Registry) -> APIRouter:
    """The route, answered by ``models``."""
    routes = APIRouter(tags=["generation"])
    answers: dict[int | str, dict[str, Any]] = {
        200: {
            "model": ChatCompletion,
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "The answer; with `stream`, chunks of it as server-sent events",
        }
    }

    @routes.post(ENDPOINT, responses=answers, response_model=None)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        models.expect("generate")
        asked = await body.read(request, ChatRequest, max_bytes=models.settings.max_body_bytes)
        served = models.find(asked.model, "generate")
        origin = Origin.of(request)
        if not asked.stream:
            answer = await while_connected(request.receive, complete(served, asked, origin))
            return JSONResponse(answer)
        generation = await while_connected(request.receive, _start(served, asked, origin))
        return EventStream(_chunks(served, asked, origin, generation), generation.close)

    return routes


async def complete(served: ServedModel, asked: ChatRequest, origin: Origin) -> ChatCompletion:
    """The whole answer to ``asked``, whose ``stream`` is not looked at.

    Cancelling the task that awaits it aborts the request in the engine.

    Raises:
        GalleyError: as ``errors.to_http`` tells clients.
    """
    tokenizer = served.backend().tokenizer
    with await _start(served, asked, origin) as generation:
        parts: list[list[Piece]] = [[] for _ in range(generation.choices)]
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                parts[piece.choice].append(piece)
        return {
            "id": f"chatcmpl-{origin.request_id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": served.name,
            "choices": [_whole(asked, tokenizer, choice) for choice in parts],
            "usage": generation.usage(),
        }


def _whole(asked: ChatRequest, tokenizer: Tokenizer, parts: Sequence[Piece]) -> ChatChoice:
    """The pieces of one choice, of which there is at least the last, as one."""
    content = "".join(piece.delta.text for piece in parts)
    entries = [entry for piece in parts for entry in _entries(tokenizer, piece)]
    return {
        "index": parts[-1].choice,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": {"content": entries, "refusal": None} if asked.logprobs else None,
        "finish_reason": parts[-1].finish or "stop",
    }


async def _start(served: ServedModel, asked: ChatRequest, origin: Origin) -> Generation:
    """The request's sequences, in the engine."""
    with _named_as_given(asked):
        params = asked.sampling()
        check_count(served, 1, params.n, "messages")
        prompt = await _prompt(served, asked)
        return Generation.submit(
            served,
            asked,
            params,
            [prompt],
            endpoint=ENDPOINT,
            prompt_param="messages",
            origin=origin,
        )


async def _prompt(served: ServedModel, asked: ChatRequest) -> list[int]:
    backend = served.backend()
    messages = [message.plain() for message in asked.messages]
    # A long conversation takes a while; in a thread it delays nobody else's tokens.
    return await asyncio.to_thread(
        backend.template.encode,
        backend.tokenizer,
        messages,
        context=backend.engine.info.max_request_tokens,
    )


async def _chunks(
    served: ServedModel, asked: ChatRequest, origin: Origin, generation: Generation
) -> AsyncGenerator[ChatChunk, None]:
    tokenizer = served.backend().tokenizer
    created = int(time.time())

    def chunk(*choices: ChatChunkChoice) -> ChatChunk:
        value: ChatChunk = {
            "id": f"chatcmpl-{origin.request_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": served.name,
            "choices": list(choices),
        }
        return {**value, "usage": None} if asked.include_usage else value

    for index in range(generation.choices):
        yield chunk(_choice(index, {"role": "assistant", "content": ""}))
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            entries = _entries(tokenizer, piece)
            if piece.delta.text or entries:
                logprobs: ChatLogprobs | None = None
                if asked.logprobs:
                    logprobs = {"content": entries, "refusal": None}
                yield chunk(_choice(piece.choice, {"content": piece.delta.text}, logprobs))
            if piece.finish is not None:
                yield chunk(_choice(piece.choice, {}, finish=piece.finish))
    if asked.include_usage:
        yield {**chunk(), "usage": generation.usage()}


def _choice(
    index: int,
    delta: ChatDelta,
    logprobs: ChatLogprobs | None = None,
    finish: Finish | None = None,
) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _entries(tokenizer: Tokenizer, piece: Piece) -> list[ChatLogprob]:
    return [_entry(tokenizer, logprob) for logprob in piece.delta.logprobs or []]


def _entry(tokenizer: Tokenizer, logprob: TokenLogprob) -> ChatLogprob:
    chosen, top = describe(tokenizer, logprob)
    return {**_token(chosen), "top_logprobs": [_token(entry) for entry in top]}


def _token(entry: TokenText) -> TopLogprob:
    return {
        "token": entry.text,
        "logprob": max(entry.logprob, LOWEST_LOGPROB),
        "bytes": list(entry.bytes),
    }


@contextmanager
def _named_as_given(asked: ChatRequest) -> Iterator[None]:
    """``max_tokens`` has two names in chat; errors use the one that the request used."""
    try:
        yield
    except RequestError as error:
        if error.param != "max_tokens":
            raise
        message = str(error).replace("max_tokens", asked.limit_name)
        raise RequestError(message, param=asked.limit_name, code=error.code) from None
