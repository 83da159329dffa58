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


_EXCLUDED: Final = "exclude_input_in_output"

_FIELDS: Final = (
    ("max_tokens", "max_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("stop_words", "stop"),
    ("random_seed", "seed"),
    ("stream", "stream"),
    ("exclude_input_in_output", _EXCLUDED),
    ("sampling_param_max_tokens", "max_tokens"),
    ("sampling_param_temperature", "temperature"),
    ("sampling_param_top_p", "top_p"),
    ("sampling_param_top_k", "top_k"),
    ("sampling_param_seed", "seed"),
    ("sampling_param_presence_penalty", "presence_penalty"),
    ("sampling_param_frequency_penalty", "frequency_penalty"),
    ("sampling_param_exclude_input_from_output", _EXCLUDED),
    ("streaming", "stream"),
)
"""(field of this extension, field of a completion)."""


class GenerateRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v2/models/{model}/generate` and `/generate_stream`.

    `parameters` are those of `POST /v1/completions`. The fields of the most common ones may also be given
    outside of it, with either of the names that the backend for TensorRT-LLM has had for them.
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
    bad_words: str | list[str] = ""
    stream: bool | None = None
    streaming: bool | None = None
    exclude_input_in_output: bool | None = None
    sampling_param_max_tokens: int | None = None
    sampling_param_temperature: float | None = None
    sampling_param_top_p: float | None = None
    sampling_param_top_k: int | None = None
    sampling_param_seed: int | None = None
    sampling_param_presence_penalty: float | None = None
    sampling_param_frequency_penalty: float | None = None
    sampling_param_exclude_input_from_output: bool | None = None

    def completion(self, model: str, *, stream: bool) -> CompletionRequest:
        """Return the request as one for a completion.

        Raises:
            RequestError: a parameter is unknown, given twice or out of range, or contradicts the route.
        """
        if self.bad_words:
            raise RequestError("bad_words is not supported; use logit_bias", param="bad_words")
        fields = self._outside_of_parameters()
        echo = fields.pop(_EXCLUDED, True) is False
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
        fields["echo"] = echo
        with renamed(_RENAMED):
            return validate(CompletionRequest, fields)

    def _outside_of_parameters(self) -> dict[str, Any]:
        """Return fields of a completion that are given outside of ``parameters``, and :data:`_EXCLUDED`.

        Raises:
            RequestError: one is given under two names.
        """
        fields: dict[str, Any] = {}
        for name, own in _FIELDS:
            value = getattr(self, name)
            if value is None or value in ("", []):
                continue
            if own in fields:
                raise RequestError(f"{name} is given twice, under two names", param=name)
            fields[own] = value
        return fields


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
