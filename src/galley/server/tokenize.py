"""``POST /tokenize`` and ``/detokenize``, shaped as in vLLM's API."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from galley.api.responses import Text, Tokens
from galley.api.schemas import DetokenizeRequest, TokenizeRequest
from galley.errors import RequestError
from galley.gateway.registry import Registry
from galley.gateway.served import Backend
from galley.server import body
from galley.server.answers import Json
from galley.server.openapi import Operation


def routes(models: Registry) -> list[Operation]:
    """The routes, answered by ``models``."""
    max_bytes = models.settings.max_body_bytes

    async def tokenize(request: Request) -> Response:
        """The token ids of a prompt, or of messages as the chat template writes them."""
        models.expect()
        asked = await body.read(request, TokenizeRequest, max_bytes=max_bytes)
        backend = models.find(asked.model).backend()
        tokens = await asyncio.to_thread(_tokens, backend, asked)
        answer: Tokens = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": backend.engine.info.max_request_tokens,
        }
        return Json(answer)

    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        models.expect()
        asked = await body.read(request, DetokenizeRequest, max_bytes=max_bytes)
        backend = models.find(asked.model).backend()
        _check_ids(asked.tokens, backend.engine.info.vocab_size)
        text = await asyncio.to_thread(
            backend.tokenizer.decode, asked.tokens, skip_special_tokens=False
        )
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


def _tokens(backend: Backend, asked: TokenizeRequest) -> list[int]:
    """Raises RequestError if there is not exactly one thing to tokenise."""
    if (asked.prompt is None) == (asked.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if asked.prompt is not None:
        if asked.add_generation_prompt is not None:
            raise RequestError(
                "add_generation_prompt goes with messages", param="add_generation_prompt"
            )
        return backend.tokenizer.encode(
            asked.prompt, add_special_tokens=asked.add_special_tokens is not False
        )
    if asked.add_special_tokens is not None:
        raise RequestError(
            "add_special_tokens goes with prompt; the chat template adds its own",
            param="add_special_tokens",
        )
    return backend.template.encode(
        backend.tokenizer,
        [message.plain() for message in asked.messages or []],
        add_generation_prompt=asked.add_generation_prompt is not False,
    )


def _check_ids(tokens: list[int], vocab_size: int) -> None:
    outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise RequestError(
            f"tokens holds id {outside}; ids run from 0 to {vocab_size - 1}", param="tokens"
        )
