"""Requests of completions, field by field."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.openai.generation import GenerationRequest
from galley.protocols.openai.inputs import Prompt, check_items
from galley.types import SamplingParams


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    suffix: Literal[""] | None = None
    echo: Annotated[bool | None, Meta(description="Return the prompt before the completion.")] = (
        None
    )
    logprobs: Annotated[
        int | None,
        Meta(description="Alternatives for each token; with `echo`, for the prompt's tokens too."),
    ] = None

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            check_items(self.prompt, "prompt")

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            RequestError: a value is out of range, or fields contradict each other.
        """
        return self._sampling(
            logprobs=self.logprobs, prompt_logprobs=self.logprobs if self.echo else None
        )

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts, always as a list.

        Raises:
            RequestError: there are no prompts, or one is empty.
        """
        prompts: Any = self.prompt
        if isinstance(prompts, str) or isinstance(next(iter(prompts), None), int):
            prompts = [prompts]
        if not prompts or not all(prompts):
            raise RequestError("prompt is empty; give at least one token", param="prompt")
        return prompts  # type: ignore[no-any-return]
