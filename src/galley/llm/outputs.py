"""One choice of ``galley.LLM``, complete or in progress."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

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


class ChatDelta(Delta, frozen=True, kw_only=True):
    """What one engine output adds to a chat answer.

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
