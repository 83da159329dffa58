"""Completions: a prompt, or several, as text or token ids, and what comes after."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal, Self, TypedDict

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.generation import Finish, Generation, Piece, check_count
from galley.gateway.served import ServedModel
from galley.protocols.openai.chat.answers import (
    LOWEST_LOGPROB,
)
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.encoded import encoded
from galley.protocols.openai.usage import (
    ChunkUsage,
    Usage,
    usage,
)
from galley.text.stream import TextStream, TokenText, describe
from galley.text.tokenizer import Tokenizer
from galley.types import Output, TokenLogprob, Tokens

ENDPOINT: Final = "/v1/completions"

DEFAULT_TOKENS: Final = 16
"""Of a completion, as OpenAI has it."""


class CompletionLogprobs(TypedDict):
    """Parallel lists, an entry for each token; ``text_offset`` counts characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One completion, or what a chunk adds to one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(ChunkUsage):
    """Answer, or one event of a streamed answer, of `POST /v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]


async def _token_ids(given: Sequence[str | list[int]], call: Call) -> list[list[int]]:
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    encoded = await call.text.encode(texts, context=call.info.max_request_tokens)
    ids = iter(encoded)
    return [next(ids) if isinstance(prompt, str) else prompt for prompt in given]


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
    return [
        _echo(prompt, token_ids, tokenizer)
        for prompt, token_ids in zip(given, prompts, strict=True)
    ]


def _echo(prompt: str | list[int], token_ids: list[int], tokenizer: Tokenizer) -> _Echo:
    output = Output(request_id="", result=Tokens(tokens=token_ids), finish_reason="length")
    if isinstance(prompt, str):
        # Special tokens may be written in the prompt, or added around it.
        whole = TextStream(tokenizer, markers=tokenizer.special_ids).feed(output)
        begin = whole.text.find(prompt)
        if begin >= 0:
            offsets = [min(max(0, at - begin), len(prompt)) for at in whole.text_offsets]
            return _Echo(token_ids, prompt, offsets)
    shown = TextStream(tokenizer).feed(output)
    return _Echo(token_ids, shown.text, shown.text_offsets)


class CompletionAnswer:
    """The answer to one request, on its way; ask for it whole or in chunks, once."""

    def __init__(
        self,
        call: Call,
        asked: CompletionRequest,
        echoes: Sequence[_Echo],
        generation: Generation,
    ) -> None:
        """Made by :meth:`start`."""
        self._generation = generation
        self._asked = asked
        self._tokenizer = call.backend.tokenizer
        self._echoes = echoes
        self._frame = {
            "id": f"cmpl-{call.caller.request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": call.model,
        }
        self._scores: dict[int, list[TokenLogprob]] = {}
        self._begun: set[int] = set()

    @classmethod
    async def start(cls, served: ServedModel, asked: CompletionRequest, caller: Caller) -> Self:
        """Hand the request to the engine; ``asked.stream`` is not looked at.

        Raises:
            GalleyError: as ``errors.to_api_error`` tells clients.
        """
        params = asked.sampling()
        given = asked.prompts()
        check_count(served, len(given), params.n, "prompt")
        with opened(Call(served, ENDPOINT, caller)) as call:
            call.check_early(asked.priority or 0)
            params = await call.text.check_grammar(params, asked.constrained_by)
            prompts = await _token_ids(given, call)
            generation = Generation.submit(
                call,
                params,
                prompts,
                priority=asked.priority or 0,
                cache_salt=asked.cache_salt,
                prompt_param="prompt",
                default_tokens=DEFAULT_TOKENS,
            )
            tokenizer = call.backend.tokenizer
            try:
                echoes = await asyncio.to_thread(_echoes, given, prompts, asked, tokenizer)
            except BaseException:
                generation.close()
                raise
        return cls(call, asked, echoes, generation)

    def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        self._generation.close()

    async def whole(self) -> Completion:
        """The complete answer. Raises EngineError or Draining if there is none."""
        parts: list[list[CompletionChoice]] = [[] for _ in range(self._generation.choices)]
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                choice = self._choice(piece)
                if choice["logprobs"] is not None:
                    top = choice["logprobs"]["top_logprobs"]
                    choice["logprobs"]["top_logprobs"] = [encoded(one) for one in top]
                parts[piece.choice].append(choice)
        choices = [_joined(choice) for choice in parts]
        return {**self._answer(choices), "usage": self._usage()}

    async def events(self) -> AsyncGenerator[Completion, None]:
        """The streamed answer. Raises as :meth:`whole`."""
        asked = self._asked
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                choice = self._choice(piece)
                if choice["text"] or choice["logprobs"] or choice["finish_reason"]:
                    chunk = self._answer([choice])
                    if asked.continuous_usage:
                        chunk["usage"] = usage(self._generation.usage())
                    elif asked.include_usage:
                        chunk["usage"] = None
                    yield chunk
        if asked.include_usage:
            yield {**self._answer([]), "usage": self._usage()}

    def _usage(self) -> Usage:
        return usage(self._generation.usage(), self._generation.receipt)

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        """The generation's.

        A prompt is scored once, by its first choice; where an echo tells the scores, the others wait.
        """
        scored = self._asked.echo and self._asked.logprobs is not None
        held: dict[int, list[Piece]] = {}
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                prompt = self._prompt_of(piece)
                if piece.prompt_logprobs is not None:
                    self._scores[prompt] = piece.prompt_logprobs
                held.setdefault(prompt, []).append(piece)
                if not scored or prompt in self._scores:
                    for ready in held.pop(prompt):
                        yield ready

    def _answer(self, choices: list[CompletionChoice]) -> Completion:
        """``choices`` in the frame of the answer, without usage."""
        return {**self._frame, "choices": choices}  # type: ignore[typeddict-item]

    def _choice(self, piece: Piece) -> CompletionChoice:
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
