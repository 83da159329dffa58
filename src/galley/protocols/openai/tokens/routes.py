"""``POST /tokenize`` and ``/detokenize``, shaped as in vLLM's API."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from galley.errors import RequestError
from galley.gateway.backend import Backend
from galley.gateway.registry import Registry
from galley.protocols.http.admit import admit_unqueued
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.openai.tokens.answers import Text, Tokens
from galley.protocols.openai.tokens.schemas import DetokenizeRequest, TokenizeRequest
from galley.service.turns import Share
from galley.text.tokenizer import CERTAINLY_LONG
from galley.tools.conversation import Conversation

LEAST_TOKENS: Final = 64 * 1024
"""Tokens accepted for any model; a model with a longer context accepts as many as its context."""


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def tokenize(request: Request) -> Response:
        """Tokenize a prompt, or messages as the chat template renders them."""
        parsed, caller, served = await admit_unqueued(models, request, TokenizeRequest)
        backend = served.backend()
        tokens = await _tokens(backend, caller.share, parsed)
        answer: Tokens = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": backend.engine.info.max_request_tokens,
        }
        return Json(answer)

    async def detokenize(request: Request) -> Response:
        """Detokenize token ids, including special tokens."""
        parsed, caller, served = await admit_unqueued(models, request, DetokenizeRequest)
        backend = served.backend()
        _check_ids(parsed.tokens, backend)
        text = await backend.require_text().pool.of(caller.share).decode(parsed.tokens)
        answer: Text = {"prompt": text}
        return Json(answer)

    return [
        Operation(
            "POST",
            "/tokenize",
            tokenize,
            tag="tokens",
            body=TokenizeRequest,
            answers={200: Tokens},
        ),
        Operation(
            "POST",
            "/detokenize",
            detokenize,
            tag="tokens",
            body=DetokenizeRequest,
            answers={200: Text},
        ),
    ]


async def _tokens(backend: Backend, share: Share, parsed: TokenizeRequest) -> list[int]:
    """Return the token ids of a request's prompt or messages.

    Raises:
        RequestError: not exactly one of them is given, or it is too large.
    """
    parts = backend.require_text()
    text = parts.pool.of(share)
    if (parsed.prompt is None) == (parsed.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if parsed.prompt is not None:
        if parsed.add_generation_prompt is not None:
            raise RequestError(
                "add_generation_prompt needs messages", param="add_generation_prompt"
            )
        _check_chars([parsed.prompt], backend, "prompt")
        [ids] = await text.encode(
            [parsed.prompt], add_special_tokens=parsed.add_special_tokens is not False
        )
        return ids
    if parsed.add_special_tokens is not None:
        raise RequestError(
            "add_special_tokens needs prompt; the chat template adds its own",
            param="add_special_tokens",
        )
    conversation = Conversation(messages=[message.plain() for message in parsed.messages or []])
    messages = conversation.with_system_prompt(parts.system_prompt).messages
    _check_chars([message.text or "" for message in parsed.messages or []], backend, "messages")
    return await text.chat(
        messages, add_generation_prompt=parsed.add_generation_prompt is not False
    )


def _most_tokens(backend: Backend) -> int:
    return max(LEAST_TOKENS, backend.engine.info.max_request_tokens)


def _check_chars(texts: list[str], backend: Backend, param: str) -> None:
    """Raise RequestError for texts that are certainly too long.

    Only characters are counted: tokenizing texts that are too long is the work to avoid.
    """
    most, count = CERTAINLY_LONG * _most_tokens(backend), sum(map(len, texts))
    if count > most:
        raise RequestError(f"{param} has {count} characters; the maximum is {most}", param=param)


def _check_ids(tokens: list[int], backend: Backend) -> None:
    vocab_size, most = backend.engine.info.require_text().vocab_size, _most_tokens(backend)
    if len(tokens) > most:
        raise RequestError(f"tokens has {len(tokens)} ids; the maximum is {most}", param="tokens")
    outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise RequestError(
            f"tokens contains id {outside}; ids run from 0 to {vocab_size - 1}", param="tokens"
        )
