"""Results of ``galley.LLM``, complete or in progress."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from galley.errors import shown
from galley.text.stream import Delta, TextStream
from galley.tools.events import Call, CallEnd, Event, Reasoning, Text, whole
from galley.tools.parser import Parser
from galley.types import FinishReason, Output, Timing, TokenLogprob


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation of a prompt.

    Attributes:
        token_ids: generated tokens, including a stop token.
        text: text without stop token and stop string; empty if the checkpoint has no tokenizer. In
            chat it contains neither thinking nor calls.
        logprobs: one entry for each token, if requested.
        timing: seconds on the engine's clock.
        error: the cause, if ``finish_reason`` is "error".
        reasoning: the model's thinking, in chat.
        tool_calls: the calls that the model makes, in chat.
        warnings: why calls in the text could not be read.
    """

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason
    timing: Timing
    error: str | None = None
    reasoning: str = ""
    tool_calls: list[Call] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, repr=False)
class RequestOutput:
    """The result of one prompt. The attributes of a single choice are those of ``choices[0]``.

    Attributes:
        choices: the ``SamplingParams.n`` choices.
        prompt_tokens: number of tokens in the prompt.
        cached_tokens: number of prompt tokens that the prefix cache supplied.
        prompt_logprobs: one entry for each prompt token after the first, if requested.
    """

    choices: list[Choice]
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: list[TokenLogprob] | None

    def __repr__(self) -> str:
        answers = (
            f"{shown(c.text)} ({len(c.token_ids)} tokens, {c.finish_reason})" for c in self.choices
        )
        return f"RequestOutput({', '.join(answers)}; prompt of {self.prompt_tokens} tokens)"

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the first choice; see :class:`Choice`."""
        return self.choices[0].token_ids

    @property
    def text(self) -> str:
        """Text of the first choice; see :class:`Choice`."""
        return self.choices[0].text

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """Log-probabilities of the first choice; see :class:`Choice`."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended; see :class:`Choice`."""
        return self.choices[0].finish_reason

    @property
    def timing(self) -> Timing:
        """Timing of the first choice; see :class:`Choice`."""
        return self.choices[0].timing

    @property
    def error(self) -> str | None:
        """Error of the first choice; see :class:`Choice`."""
        return self.choices[0].error


class ChatDelta(Delta, frozen=True, kw_only=True):
    """The part of a chat answer that one engine output adds.

    Attributes:
        text: text of the answer, with neither thinking nor calls.
        reasoning: text of the model's thinking.
        tool_calls: calls that have become complete.
    """

    reasoning: str = ""
    tool_calls: list[Call] = msgspec.field(default_factory=list)


@dataclass(slots=True)
class Result:
    """A choice in progress; with a parser, its events are those of a chat answer."""

    stream: TextStream
    parser: Parser | None = None
    events: list[Event] = field(default_factory=list)
    first: Output | None = None
    timing: Timing = field(default_factory=Timing)
    error: str | None = None

    def feed(self, output: Output) -> Delta:
        """Add the engine's next output and return the delta; end the choice after a last call."""
        self.first = self.first or output
        self.timing = output.timing or self.timing
        self.error = output.error
        delta = self.stream.feed(output)
        if self.parser is None:
            return delta
        self.events += self.parser.feed(delta.text, delta.marks)
        if self.parser.finished and delta.finish_reason is None:
            self.stream.finish_reason = "stop"
            delta = msgspec.structs.replace(delta, finish_reason="stop")
        if delta.finish_reason is not None:
            self.events += self.parser.finish()
        return delta


def chat_deltas(deltas: Iterator[Delta], result: Result) -> Iterator[ChatDelta]:
    """Yield the deltas of one chat answer, split into parts; ``deltas`` come from ``result``."""
    seen = 0
    for delta in deltas:
        fields = msgspec.structs.asdict(delta)
        if result.parser is None:
            yield ChatDelta(**fields)
            continue
        events, seen = result.events[seen:], len(result.events)
        calls = sum(isinstance(event, CallEnd) and not event.broken for event in events)
        fields["text"] = "".join(event.text for event in events if isinstance(event, Text))
        yield ChatDelta(
            **fields,
            reasoning="".join(event.text for event in events if isinstance(event, Reasoning)),
            tool_calls=whole(result.events).calls[-calls:] if calls else [],
        )


def output_of(prompt: list[int], results: list[Result]) -> RequestOutput:
    """Return the output of a prompt, given as token ids, whose choices are all complete."""
    first = results[0].first
    assert first is not None
    return RequestOutput(
        choices=[_choice(result) for result in results],
        prompt_tokens=len(prompt),
        cached_tokens=first.cached_tokens,
        prompt_logprobs=first.generated.prompt_logprobs,
    )


def _choice(result: Result) -> Choice:
    stream = result.stream
    assert stream.finish_reason is not None
    answer = None if result.parser is None else whole(result.events)
    return Choice(
        token_ids=stream.token_ids,
        text=stream.text if answer is None else answer.text,
        logprobs=stream.logprobs,
        finish_reason=stream.finish_reason,
        timing=result.timing,
        error=result.error,
        reasoning=answer.reasoning if answer else "",
        tool_calls=answer.calls if answer else [],
        warnings=answer.warnings if answer else [],
    )
