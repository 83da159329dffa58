"""``POST /v1/completions``: a prompt, or several, as text or token ids, and what comes after."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from galley.server import body
from galley.server.chat import LOWEST_LOGPROB
from galley.server.generate import Generation, Origin, Piece, check_count
from galley.server.registry import Registry
from galley.server.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Finish,
)
from galley.server.schemas import CompletionRequest
from galley.server.served import Backend, ServedModel
from galley.server.sse import EventStream, while_connected
from galley.text.stream import TextStream, TokenText, describe
from galley.text.tokenizer import Tokenizer
from galley.types import Output, TokenLogprob

ENDPOINT: Final = "/v1/completions"


def router(models: Registry) -> APIRouter:
    """The route, answered by ``models``."""
    routes = APIRouter(tags=["generation"])
    answers: dict[int | str, dict[str, Any]] = {
        200: {
            "model": Completion,
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "The completions; with `stream`, chunks of them as server-sent events",
        }
    }

    @routes.post(ENDPOINT, responses=answers, response_model=None)
    async def completions(request: Request) -> Response:
        """Continue prompts. In a text, special tokens' text means those tokens."""
        models.expect("generate")
        asked = await body.read(
            request, CompletionRequest, max_bytes=models.settings.max_body_bytes
        )
        served = models.find(asked.model, "generate")
        origin = Origin.of(request)
        if not asked.stream:
            answer = await while_connected(request.receive, complete(served, asked, origin))
            return JSONResponse(answer)
        job = await while_connected(request.receive, _start(served, asked, origin))
        return EventStream(job.chunks(), job.generation.close)

    return routes


async def complete(served: ServedModel, asked: CompletionRequest, origin: Origin) -> Completion:
    """The whole answer to ``asked``, whose ``stream`` is not looked at.

    Cancelling the task that awaits it aborts the request in the engine.

    Raises:
        GalleyError: as ``errors.to_http`` tells clients.
    """
    job = await _start(served, asked, origin)
    with job.generation as generation:
        parts: list[list[CompletionChoice]] = [[] for _ in range(generation.choices)]
        async with aclosing(job.pieces()) as pieces:
            async for piece in pieces:
                parts[piece.choice].append(job.choice(piece))
        usage = generation.usage()
        return {**job.answer([_joined(choice) for choice in parts]), "usage": usage}


async def _start(served: ServedModel, asked: CompletionRequest, origin: Origin) -> "_Job":
    """The request's sequences, in the engine."""
    params = asked.sampling()
    given = asked.prompts()
    check_count(served, len(given), params.n, "prompt")
    backend = served.backend()
    # Long texts take a while; in a thread they delay nobody else's tokens.
    prompts = await asyncio.to_thread(_token_ids, given, backend)
    generation = Generation.submit(
        served, asked, params, prompts, endpoint=ENDPOINT, prompt_param="prompt", origin=origin
    )
    try:
        echoes = await asyncio.to_thread(_echoes, given, prompts, asked, backend.tokenizer)
    except BaseException:
        generation.close()
        raise
    return _Job(served, asked, origin, echoes, generation)


def _token_ids(given: Sequence[str | list[int]], backend: Backend) -> list[list[int]]:
    context = backend.engine.info.max_request_tokens
    for text in given:
        if isinstance(text, str):
            backend.tokenizer.check_length(text, context, param="prompt")
    return [backend.tokenizer.encode(p) if isinstance(p, str) else p for p in given]


@dataclass(frozen=True)
class _Echo:
    """A prompt as ``echo`` shows it.

    Attributes:
        offsets: where each token starts in ``text``.
    """

    token_ids: list[int]
    text: str
    offsets: list[int]


def _echoes(
    given: Sequence[str | list[int]],
    prompts: Sequence[list[int]],
    asked: CompletionRequest,
    tokenizer: Tokenizer,
) -> list[_Echo]:
    """One for each prompt; none if ``asked`` wants no echo."""
    if not asked.echo:
        return []
    echoes = []
    for prompt, token_ids in zip(given, prompts, strict=True):
        output = Output(request_id="", tokens=token_ids, finish_reason="length")
        shown = TextStream(tokenizer).feed(output)
        text = prompt if isinstance(prompt, str) else shown.text
        echoes.append(_Echo(token_ids, text, shown.text_offsets))
    return echoes


class _Job:
    """One request on its way, and how its pieces are told."""

    def __init__(
        self,
        served: ServedModel,
        asked: CompletionRequest,
        origin: Origin,
        echoes: Sequence[_Echo],
        generation: Generation,
    ) -> None:
        self.generation = generation
        self._asked = asked
        self._tokenizer = served.backend().tokenizer
        self._echoes = echoes
        self._frame = {
            "id": f"cmpl-{origin.request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }
        self._scores: dict[int, list[TokenLogprob]] = {}
        self._begun: set[int] = set()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The generation's.

        A prompt is scored once, by its first choice; where an echo tells the scores, the others wait.
        """
        scored = self._asked.echo and self._asked.logprobs is not None
        held: dict[int, list[Piece]] = {}
        async with aclosing(self.generation.pieces()) as pieces:
            async for piece in pieces:
                prompt = self._prompt_of(piece)
                if piece.prompt_logprobs is not None:
                    self._scores[prompt] = piece.prompt_logprobs
                held.setdefault(prompt, []).append(piece)
                if not scored or prompt in self._scores:
                    for ready in held.pop(prompt):
                        yield ready

    async def chunks(self) -> AsyncGenerator[Completion, None]:
        """The streamed answer."""
        with_usage = self._asked.include_usage
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                choice = self.choice(piece)
                if choice["text"] or choice["logprobs"] or choice["finish_reason"]:
                    chunk = self.answer([choice])
                    yield {**chunk, "usage": None} if with_usage else chunk
        if with_usage:
            yield {**self.answer([]), "usage": self.generation.usage()}

    def answer(self, choices: list[CompletionChoice]) -> Completion:
        """``choices`` in the frame of the answer, without usage."""
        return {**self._frame, "choices": choices}  # type: ignore[typeddict-item]

    def choice(self, piece: Piece) -> CompletionChoice:
        """What ``piece`` adds to its choice; the first one of each brings the echo."""
        prompt = self._prompt_of(piece)
        echo = self._echoes[prompt] if self._echoes else None
        text, logprobs = piece.delta.text, None
        if self._asked.logprobs is not None:
            start = len(echo.text) if echo else 0
            offsets = [start + offset for offset in piece.delta.text_offsets]
            logprobs = self._logprobs(piece.delta.logprobs or [], offsets)
        if echo is not None and piece.choice not in self._begun:
            self._begun.add(piece.choice)
            text = echo.text + text
            if logprobs is not None:
                logprobs = _concatenated([self._echoed(echo, self._scores[prompt]), logprobs])
        return {
            "index": piece.choice,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": piece.finish,
        }

    def _prompt_of(self, piece: Piece) -> int:
        return piece.choice // (self._asked.n or 1)

    def _echoed(self, echo: _Echo, scores: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The prompt's own; nothing comes before its first token, so that one has none."""
        rest = self._logprobs(scores, echo.offsets[1:])
        token = echo.token_ids[0]
        text, spelling = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
        first: CompletionLogprobs = {
            "tokens": [_spelt(TokenText(text, spelling, 0.0))],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": echo.offsets[:1],
        }
        return _concatenated([first, rest])

    def _logprobs(self, entries: Sequence[TokenLogprob], offsets: list[int]) -> CompletionLogprobs:
        described = [describe(self._tokenizer, entry) for entry in entries]
        return {
            "tokens": [_spelt(chosen) for chosen, _ in described],
            "token_logprobs": [max(chosen.logprob, LOWEST_LOGPROB) for chosen, _ in described],
            # The chosen token is always among them, even where k others are likelier.
            "top_logprobs": [
                {_spelt(t): max(t.logprob, LOWEST_LOGPROB) for t in [*top, chosen]}
                for chosen, top in described
            ],
            "text_offset": offsets,
        }


def _spelt(token: TokenText) -> str:
    """The token's text; as OpenAI does, ``bytes:`` and hex where it is part of a character."""
    if token.text.encode() == token.bytes:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def _joined(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """The pieces of one choice as one."""
    finish: Finish | None = parts[-1]["finish_reason"]
    logprobs = [part["logprobs"] for part in parts if part["logprobs"] is not None]
    return {
        "index": parts[0]["index"],
        "text": "".join(part["text"] for part in parts),
        "logprobs": _concatenated(logprobs) if logprobs else None,
        "finish_reason": finish,
    }


def _concatenated(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    return {
        "tokens": [token for part in parts for token in part["tokens"]],
        "token_logprobs": [value for part in parts for value in part["token_logprobs"]],
        "top_logprobs": [top for part in parts for top in part["top_logprobs"]],
        "text_offset": [offset for part in parts for offset in part["text_offset"]],
    }
