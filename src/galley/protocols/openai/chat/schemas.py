"""Requests of chat completions, field by field."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Choice, Messages, Tools, conversation_of
from galley.protocols.common.prefixes import marked_seconds
from galley.protocols.common.structured_output import ResponseFormat
from galley.protocols.openai.generation import GenerationRequest
from galley.tools.conversation import Conversation
from galley.types import MAX_LOGPROBS, SamplingParams


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: Annotated[
        int | None, Meta(description="Newer name of `max_tokens`.")
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description="Only with `logprobs`."),
    ] = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Tools | None, Meta(description="Functions that the model may call.")] = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="Accepted and ignored.")
    ] = None
    functions: Annotated[
        Annotated[list[Any], Meta(max_length=0)] | None, Meta(description="See `tools`.")
    ] = None
    function_call: Annotated[None, Meta(description="See `tool_choice`.")] = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    tool_choice: Annotated[
        Choice | None,
        Meta(
            description="Whether the model may, must or must not call tools, or which one it must "
            "call. Default: auto."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="Whether the answer may have several calls. Default: true.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        Meta(description="Variables of the model's chat template, such as `enable_thinking`."),
    ] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None,
        Meta(
            description="How much to think, if the chat template supports it; `none`: not at all."
        ),
    ] = None
    max_thinking_tokens: Annotated[
        Annotated[int, Meta(ge=0, lt=2**31)] | None,
        Meta(description="Thinking ends after this many tokens. Default: no limit."),
    ] = None

    def conversation(self) -> Conversation:
        """Return the conversation to answer, with its tools and thinking options.

        Raises:
            RequestError: fields contradict each other.
        """
        return conversation_of(
            self.messages,
            self.tools,
            self.tool_choice,
            parallel=self.parallel_tool_calls is not False,
            variables=self.chat_template_kwargs or {},
            effort=self.reasoning_effort,
            max_thinking_tokens=self.max_thinking_tokens,
        )

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            RequestError: a value is out of range, or fields contradict each other.
        """
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        limit, newer = self.max_tokens, self.max_completion_tokens
        if limit is not None and newer is not None and limit != newer:
            raise RequestError(
                f"max_tokens ({limit}) and max_completion_tokens ({newer}) differ; give only one",
                param="max_completion_tokens",
            )
        return self._sampling(
            max_tokens=newer if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    @property
    def keep_seconds(self) -> float:
        """How long the prefix is to stay cached after the request.

        Raises:
            RequestError: a ``cache_control`` names an unknown time.
        """
        marks = [
            mark
            for message in self.messages
            for mark in (message.cache_control, message.copilot_cache_control)
        ]
        for message in self.messages:
            if isinstance(message.content, list):
                marks += [part.cache_control for part in message.content]
        marks += [tool.cache_control for tool in self.tools or ()]
        return max(marked_seconds(marks), super().keep_seconds)

    @property
    def limit_name(self) -> str:
        """Name of the field in which the request gave its token limit."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
