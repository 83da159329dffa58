"""The interface of a library that continues texts to the engine that serves it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, Final, Protocol, TypeVar

from galley.types import FinishReason, Generate, TokenLogprob, Transcribe

Item = TypeVar("Item")
Writing = TypeVar("Writing", bound=Generate | Transcribe)
"""The kind of payload that a runtime continues."""

_Writing_contra = TypeVar("_Writing_contra", bound=Generate | Transcribe, contravariant=True)


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a step brought one text.

    Attributes:
        id: id of its request.
        tokens: new tokens; a stop token is the last of them.
        rows: tokens that the step computed for it, its prompt's included.
        logprobs, scores: one for each of ``tokens``, if requested; see :class:`~galley.types.Tokens`.
        no_speech_prob: in the first advance of a transcript, if requested.
        cached: tokens of the prompt that were not computed, because an earlier text has them, too.
        finish_reason: set in the text's last advance.
        error: description of the failure, where ``finish_reason`` is "error".
    """

    id: str
    tokens: list[int]
    rows: int
    logprobs: list[TokenLogprob] | None = None
    scores: list[float] | None = None
    no_speech_prob: float | None = None
    cached: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """The state of a runtime's KV cache, in its own blocks: those of running texts, and all."""

    used: int
    total: int


class Progress:
    """Counts the tokens that a library computed for a text, by those that it returned.

    Attributes:
        begun: whether it has returned any.
    """

    __slots__ = ("_prompt", "begun")

    def __init__(self, prompt: int) -> None:
        """Create the counter of a text with this many tokens before the first new one."""
        self._prompt = prompt
        self.begun = False

    def rows(self, tokens: int) -> int:
        """Return the tokens that were computed for this many new ones; the first takes the whole prompt."""
        if not tokens or self.begun:
            return tokens
        self.begun = True
        return self._prompt + tokens - 1


def top_logprobs(tokens: Sequence[int], found: Sequence[Mapping[int, Any]]) -> list[TokenLogprob]:
    """Return log-probabilities that a library reports as vLLM does.

    Args:
        tokens: the chosen tokens.
        found: for each of them, token -> an object with its ``logprob`` and ``rank``: the best ones, and
            the chosen one, whose rank may be beyond them.
    """
    result = []
    for token, every in zip(tokens, found, strict=True):
        most = len(every) - (every[token].rank >= len(every))
        ranked = sorted(every.items(), key=lambda item: -item[1].logprob)
        top = tuple((other, one.logprob) for other, one in ranked[:most])
        result.append(TokenLogprob(token, every[token].logprob, top))
    return result


NO_LIMIT: Final = 1 << 30
"""The :attr:`TextRuntime.room` of a library that adds texts to those that it is working on."""

POLL_SECONDS: Final = 0.01
"""How long a step waits for what threads report: requests and aborts are accepted between steps."""


def arrived(queue: Queue[Item], seconds: float) -> Iterator[Item]:
    """Yield the items of a queue; wait this many seconds for the first one."""
    try:
        yield queue.get(timeout=seconds)
        while True:
            yield queue.get_nowait()
    except Empty:
        return


class TextRuntime(Protocol[_Writing_contra]):
    """Continues several texts or transcripts at a time. Not thread-safe."""

    @property
    def cache(self) -> Cache:
        """The state of the KV cache."""

    @property
    def room(self) -> int:
        """How many more texts a library could work on now.

        There is no limit for a library that adds texts to those that it is working on. The others stay
        in the engine's queue, where tenants and priorities decide which is next.
        """
        return NO_LIMIT

    def begin(self, request_id: str, payload: _Writing_contra, stop_ids: Collection[int]) -> None:
        """Add a text, which the next steps continue after ``payload.output``.

        Args:
            request_id: differs from those of all texts that have not ended.
            payload: prompt, tokens already delivered, sampling parameters, and audio if it is a transcript.
            stop_ids: tokens that end the text.

        Raises:
            RequestError: the library does not do what the request says.
            EngineError: it failed.
        """

    def end(self, request_id: str) -> None:
        """Drop a text that has not ended."""

    def step(self) -> list[Advance]:
        """Compute for some milliseconds; return what is new, at most once for each text."""

    def close(self) -> None:
        """Free the library's resources."""
