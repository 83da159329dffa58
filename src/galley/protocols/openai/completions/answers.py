"""Completions of one or several prompts, given as text or token ids."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal, NotRequired, Self, TypedDict

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.generation import Finish, Generation, Piece, check_count
from galley.gateway.served import ServedModel
from galley.protocols.openai.chat.answers import (
    LOWEST_LOGPROB,
)
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.encoded import encoded
from galley.protocols.openai.transfers import KVTransfer, take_transfer, transfer_of
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
"""Default ``max_tokens`` of a completion, as in OpenAI's API."""


class CompletionLogprobs(TypedDict):
    """Parallel lists with one entry for each token; ``text_offset`` counts characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One completion, or the part of one that a chunk adds."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(ChunkUsage):
    """Answer of `POST /v1/completions`, or one event of a streamed answer."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    kv_transfer_params: NotRequired[KVTransfer]


async def _token_ids(given: Sequence[str | list[int]], call: Call) -> list[list[int]]:
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    encoded = await call.text.encode(texts, context=call.info.max_request_tokens)
    ids = iter(encoded)
    return [next(ids) if isinstance(prompt, str) else prompt for prompt in given]


@dataclass(frozen=True)
class _Echo:
    """A prompt as ``echo`` returns it.

    Attributes:
        offsets: character at which each token starts in ``text``.
    """

    token_ids: list[int]
    text: str
    offsets: list[int]


def _echoes(
    given: Sequence[str | list[int]],
    prompts: Sequence[list[int]],
    tokenizer: Tokenizer,
) -> list[_Echo]:
    """Return the echo of each prompt."""
    return [
        _echo(prompt, token_ids, tokenizer)
        for prompt, token_ids in zip(given, prompts, strict=True)
    ]


def _echo(prompt: str | list[int], token_ids: list[int], tokenizer: Tokenizer) -> _Echo:
    output = Output(request_id="", result=Tokens(tokens=token_ids), finish_reason="length")
    if isinstance(prompt, str):
        # Special tokens can be spelled out in the prompt, or added around it.
        whole = TextStream(tokenizer, markers=tokenizer.special_ids).feed(output)
        begin = whole.text.find(prompt)
        if begin >= 0:
            offsets = [min(max(0, at - begin), len(prompt)) for at in whole.text_offsets]
            return _Echo(token_ids, prompt, offsets)
    shown = TextStream(tokenizer).feed(output)
    return _Echo(token_ids, shown.text, shown.text_offsets)


class CompletionAnswer:
    """The answer to one request in progress; read it once, either whole or as chunks."""

    def __init__(
        self,
        call: Call,
        parsed: CompletionRequest,
        echoes: Sequence[_Echo],
        generation: Generation,
    ) -> None:
        """Create the answer; :meth:`start` calls this."""
        self._generation = generation
        self._parsed = parsed
        self._tokenizer = call.backend.require_text().tokenizer
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
    async def start(cls, served: ServedModel, parsed: CompletionRequest, caller: Caller) -> Self:
        """Submit the request to the engine; ``parsed.stream`` is ignored.

        Raises:
            GalleyError: the request is refused or fails (mapped by ``errors.to_api_error``).
        """
        caller.keep_seconds = parsed.keep_seconds
        params = parsed.sampling()
        given = parsed.prompts()
        check_count(served, len(given), params.n, "prompt")
        with opened(Call(served, ENDPOINT, caller)) as call:
            take_transfer(
                parsed.kv_transfer_params, call, streams=bool(parsed.stream), prompts=len(given)
            )
            call.check_early(parsed.priority or 0)
            params = await call.text.check_grammar(params, parsed.constrained_by)
            prompts = await _token_ids(given, call)
            generation = await Generation.submit(
                call,
                params,
                prompts,
                priority=parsed.priority or 0,
                cache_salt=parsed.cache_salt,
                prompt_param="prompt",
                default_tokens=DEFAULT_TOKENS,
            )
            tokenizer = call.backend.require_text().tokenizer
            try:
                echoes = []
                if parsed.echo:
                    echoes = await asyncio.to_thread(_echoes, given, prompts, tokenizer)
            except BaseException:
                generation.close()
                raise
        return cls(call, parsed, echoes, generation)

    def close(self) -> None:
        """Cancel the generation if it still runs. Idempotent."""
        self._generation.close()

    async def whole(self) -> Completion:
        """Return the complete answer.

        Raises:
            EngineError: the engine failed.
            Draining: the server is shutting down.
        """
        parts: list[list[CompletionChoice]] = [[] for _ in range(self._generation.choices)]
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                choice = self._choice(piece)
                if choice["logprobs"] is not None:
                    top = choice["logprobs"]["top_logprobs"]
                    choice["logprobs"]["top_logprobs"] = [encoded(one) for one in top]
                parts[piece.choice].append(choice)
        choices = [_joined(choice) for choice in parts]
        answer: Completion = {**self._answer(choices), "usage": self._usage()}
        if (transfer := transfer_of(self._generation.kv_peer)) is not None:
            answer["kv_transfer_params"] = transfer
        return answer

    async def events(self) -> AsyncGenerator[Completion, None]:
        """Yield the answer in chunks. Raises as :meth:`whole`."""
        parsed = self._parsed
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                choice = self._choice(piece)
                if choice["text"] or choice["logprobs"] or choice["finish_reason"]:
                    chunk = self._answer([choice])
                    if parsed.continuous_usage:
                        chunk["usage"] = usage(self._generation.usage())
                    elif parsed.include_usage:
                        chunk["usage"] = None
                    yield chunk
        if parsed.include_usage:
            yield {**self._answer([]), "usage": self._usage()}

    def _usage(self) -> Usage:
        return usage(self._generation.usage(), self._generation.receipt)

    def _pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the generation's pieces, held back until their prompt's scores are known if needed."""
        scored = self._parsed.echo and self._parsed.logprobs is not None
        return self._scored_pieces() if scored else self._generation.pieces()

    async def _scored_pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the generation's pieces, each after its prompt's scores.

        A prompt is scored once, by its first choice; the other choices wait for the scores.
        """
        held: dict[int, list[Piece]] = {}
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                prompt = self._prompt_of(piece)
                if piece.prompt_logprobs is not None:
                    self._scores[prompt] = piece.prompt_logprobs
                held.setdefault(prompt, []).append(piece)
                if prompt in self._scores:
                    for ready in held.pop(prompt):
                        yield ready

    def _answer(self, choices: list[CompletionChoice]) -> Completion:
        """Return ``choices`` in the frame of the answer, without usage."""
        return {**self._frame, "choices": choices}  # type: ignore[typeddict-item]

    def _choice(self, piece: Piece) -> CompletionChoice:
        """Return the part of a choice that ``piece`` adds; a choice's first piece has the echo."""
        prompt = self._prompt_of(piece)
        echo = self._echoes[prompt] if self._echoes else None
        text, logprobs = piece.delta.text, None
        if self._parsed.logprobs is not None:
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
        return piece.choice // (self._parsed.n or 1)

    def _echoed(self, echo: _Echo, scores: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Return the prompt's log-probabilities; its first token follows nothing and has none."""
        rest = self._logprobs(scores, echo.offsets[1:])
        token = echo.token_ids[0]
        text, spelling = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
        first: CompletionLogprobs = {
            "tokens": [_spelled(TokenText(text, spelling, 0.0))],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": echo.offsets[:1],
        }
        return _concatenated([first, rest])

    def _logprobs(self, entries: Sequence[TokenLogprob], offsets: list[int]) -> CompletionLogprobs:
        described = [describe(self._tokenizer, entry) for entry in entries]
        return {
            "tokens": [_spelled(chosen) for chosen, _ in described],
            "token_logprobs": [max(chosen.logprob, LOWEST_LOGPROB) for chosen, _ in described],
            # The chosen token is always included, even if k others are more likely.
            "top_logprobs": [
                {_spelled(t): max(t.logprob, LOWEST_LOGPROB) for t in [*top, chosen]}
                for chosen, top in described
            ],
            "text_offset": offsets,
        }


def _spelled(token: TokenText) -> str:
    """Return the token's text, or ``bytes:`` and hex for partial characters, as OpenAI does."""
    if token.text.encode() == token.bytes:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def _joined(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """Join the pieces of one choice."""
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
