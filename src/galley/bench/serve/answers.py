"""Readers of responses in OpenAI's format, parsed as they arrive."""

from typing import Any, Final

import msgspec

from galley.bench.serve.samples import Sample

_LONGEST_DETAIL: Final = 300


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    def says(self) -> bool:
        """Return whether the event carries generated output; the first event of a chat has a role alone."""
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _Event(msgspec.Struct):
    """An event of a stream, or a whole response, whose ``message`` is ignored."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    duration: float | None = None


_DECODER: Final = msgspec.json.Decoder(_Event)


class AnswerReader:
    """Fills a :class:`Sample` from a response as it arrives."""

    def __init__(self, sample: Sample, *, streamed: bool) -> None:
        """Create the reader; ``streamed``: the request wants server-sent events."""
        self._sample = sample
        self._streamed = streamed
        self._status = 0
        self._rest = b""
        self.done = False
        """The stream ended with ``[DONE]``."""

    def begun(self, status: int) -> None:
        """See :class:`~galley.bench.serve.client.Reader`."""
        self._status = status
        self._streamed = self._streamed and status == 200

    def received(self, data: bytes, now: float) -> None:
        """See :class:`~galley.bench.serve.client.Reader`."""
        self._rest += data
        if self._streamed:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), now)

    def ended(self) -> None:
        """Record the usage of the complete response, or what was wrong with it."""
        sample = self._sample
        if self._status != 200:
            self._fail(f"http {self._status}", self._rest)
        elif self._streamed:
            if not self.done and not sample.error:
                self._fail("stream without end", self._rest)
            elif not sample.chunks and not sample.error:
                self._fail("no text", b"the stream ended without text")
        else:
            self._decoded(self._rest)
        if not sample.counted:
            sample.output_tokens = len(sample.chunks)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        event = self._decoded(data)
        if event is not None and any(choice.says() for choice in event.choices):
            self._sample.chunks.append(now)

    def _decoded(self, data: bytes) -> _Event | None:
        try:
            event = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            self._fail("unreadable answer", f"{error}: ".encode() + data)
            return None
        if event.error is not None:
            self._fail("error in the stream", msgspec.json.encode(event.error))
        sample, usage = self._sample, event.usage
        if usage is not None:
            sample.counted = True
            sample.prompt_tokens = usage.prompt_tokens
            sample.output_tokens = usage.completion_tokens or 0
            if usage.prompt_tokens_details is not None:
                sample.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        sample.audio_seconds = event.duration or 0.0
        return event

    def _fail(self, kind: str, detail: bytes) -> None:
        self._sample.error = kind
        self._sample.detail = detail[:_LONGEST_DETAIL].decode(errors="replace")
