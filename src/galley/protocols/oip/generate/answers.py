"""Texts in the form of Triton's generate extension, made as the completions of OpenAI's API."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, Self, TypedDict

import msgspec

from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import renamed
from galley.protocols.common.messages import Strict
from galley.protocols.common.validate import validate
from galley.protocols.openai.completions.answers import CompletionAnswer
from galley.protocols.openai.completions.schemas import CompletionRequest

_RENAMED: Final = {"prompt": "text_input", "stop": "stop_words"}
"""Field of a completion -> field of this extension."""

_FIXED: Final = ("model", "prompt", "n", "logprobs", "stream_options", "echo", "suffix")
"""Fields of a completion whose answers have no place in this extension's."""


class GenerateRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v2/models/{model}/generate` and `/generate_stream`.

    `parameters` are those of `POST /v1/completions`. The fields of the most common ones may also be given
    outside of it, as the backend for TensorRT-LLM has them.
    """

    text_input: str
    id: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_words: str | list[str] | None = None
    random_seed: int | None = None
    stream: bool | None = None
    exclude_input_in_output: bool = True

    def completion(self, model: str, *, stream: bool) -> CompletionRequest:
        """Return the request as one for a completion.

        Raises:
            RequestError: a parameter is unknown, given twice or out of range, or contradicts the route.
        """
        given = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_words or None,
            "seed": self.random_seed,
            "stream": self.stream,
        }
        fields = {name: value for name, value in given.items() if value is not None}
        for name in self.parameters:
            if name in _FIXED or name in fields:
                reason = "is given twice" if name in fields else "is not supported"
                raise RequestError(f"parameters.{name} {reason}", param=f"parameters.{name}")
        fields |= self.parameters
        if fields.get("stream", stream) is not stream:
            route = "generate" if stream else "generate_stream"
            raise RequestError(
                f"stream is {str(not stream).lower()}: use /{route} for that", param="stream"
            )
        fields |= {"model": model, "prompt": self.text_input, "stream": stream}
        fields["echo"] = not self.exclude_input_in_output
        with renamed(_RENAMED):
            return validate(CompletionRequest, fields)


class GenerateResponse(TypedDict, total=False):
    """Answer, or one of a stream: a text, or the part of it that is new."""

    id: str
    model_name: str
    model_version: str
    text_output: str


class GenerateAnswer:
    """The answer to one request in progress; read it once, either whole or as parts."""

    def __init__(self, served: ServedModel, request_id: str, completion: CompletionAnswer) -> None:
        """Create the answer; :meth:`start` calls this."""
        self._completion = completion
        self._frame: GenerateResponse = {
            "model_name": served.base_name,
            "model_version": served.version,
        }
        if request_id:
            self._frame["id"] = request_id

    @classmethod
    async def start(
        cls, served: ServedModel, parsed: GenerateRequest, caller: Caller, *, stream: bool
    ) -> Self:
        """Submit the request to the engine. Raises GalleyError if it is refused or fails."""
        wanted = parsed.completion(served.name, stream=stream)
        with renamed(_RENAMED):
            return cls(served, parsed.id, await CompletionAnswer.start(served, wanted, caller))

    def close(self) -> None:
        """Cancel the generation if it still runs. Idempotent."""
        self._completion.close()

    async def whole(self) -> Mapping[str, Any]:
        """Return the complete answer. Raises as :meth:`CompletionAnswer.whole`."""
        return self._with(await self._completion.whole())

    async def events(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the answer in parts. Raises as :meth:`whole`."""
        async with aclosing(self._completion.events()) as chunks:
            async for chunk in chunks:
                yield self._with(chunk)

    def _with(self, completion: Mapping[str, Any]) -> GenerateResponse:
        text = "".join(choice["text"] for choice in completion["choices"])
        return {**self._frame, "text_output": text}
