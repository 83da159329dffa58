"""The text of one choice of a request, from the engine's outputs."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Self

import msgspec

from galley.errors import RequestError
from galley.text.detokenizer import Detokenizer, detokenizer
from galley.text.stops import StopScanner
from galley.text.tokenizer import Tokenizer
from galley.types import FinishReason, Output, SamplingParams, TokenLogprob


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The text that one engine output adds to a choice.

    Attributes:
        text: text that has become final; may lag behind ``token_ids``.
        token_ids: new tokens, including a stop token.
        logprobs: one for each token, if requested.
        text_offsets: for each token, where its text starts in the whole text, in characters.
        marks: where in the whole text markers begin that were generated as single tokens.
        finish_reason: set in the last Delta.
    """

    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    text_offsets: list[int] = []
    marks: list[int] = []
    finish_reason: FinishReason | None = None


class TextStream:
    """Detokenizes one sequence's outputs, applies stop strings, and keeps all text and tokens.

    A stream survives a restart of the engine: outputs of the resubmitted request continue it.

    Attributes:
        token_ids, logprobs: tokens and log-probabilities of all outputs so far; ``logprobs`` is
            None until an output has some.
        finish_reason: None until the end; "stop" when a stop string was found.
        stopped: whether a stop string ended the text, so that the caller must abort the engine's
            request.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        stop: tuple[str, ...] = (),
        min_tokens: int = 0,
        hidden: AbstractSet[int] = frozenset(),
        at_start: bool = True,
        markers: AbstractSet[int] = frozenset(),
    ) -> None:
        """Create a stream.

        Args:
            tokenizer: the tokenizer; None for a model without one, whose text is empty.
            stop: strings that end the text and are not part of it.
            min_tokens: a ``stop`` that is complete within the text of this many first tokens is
                part of it.
            hidden: end-of-sequence and stop tokens, whose text is left out where they end the
                sequence.
            at_start: see :func:`galley.text.detokenizer.detokenizer`.
            markers: tokens whose text is shown, special or not, and whose positions are reported.

        Raises:
            RequestError: ``stop`` is given without a tokenizer.
        """
        if tokenizer is None and stop:
            raise RequestError("this model has no tokenizer; stop strings need one", param="stop")
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.finish_reason: FinishReason | None = None
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None:
            self._detokenizer = detokenizer(tokenizer, at_start=at_start, shown=markers)
        self._markers: dict[int, int] = {}  # token -> characters of its text
        if tokenizer is not None:
            self._markers = {token: len(tokenizer.token_text(token)) for token in markers}
        self._scanner = StopScanner(stop)
        self._min_tokens = min_tokens
        self._hidden = hidden
        self._parts: list[str] = []
        self._chars = 0  # of all text from the detokenizer, held back for stop strings or not

    @classmethod
    def for_request(
        cls,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        eos_token_ids: Iterable[int],
        *,
        markers: AbstractSet[int] = frozenset(),
    ) -> Self:
        """Create a stream for one choice of a request; ``eos_token_ids`` are the model's.

        Raises:
            RequestError: stop strings are given without a tokenizer.
        """
        ends = () if params.ignore_eos else eos_token_ids
        return cls(
            tokenizer,
            stop=params.stop,
            min_tokens=params.min_tokens,
            hidden=frozenset((*ends, *params.stop_token_ids)),
            # A grammar covers every byte of the text.
            at_start=params.grammar is None,
            markers=markers,
        )

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._parts)

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._scanner.matched

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._scanner.matched is not None

    def feed(self, output: Output) -> Delta:
        """Add the next output; return what it adds, which is nothing once the stream has finished."""
        if self.finish_reason is not None:
            return Delta()
        shown = len(output.tokens)
        if output.finish_reason == "stop" and output.tokens and output.tokens[-1] in self._hidden:
            shown -= 1
        text: list[str] = []
        offsets: list[int] = []
        marks: list[int] = []
        for index, token in enumerate(output.tokens):
            offsets.append(self._chars)
            self.token_ids.append(token)
            if self._detokenizer is not None and index < shown:
                text.append(self._search(self._detokenizer.feed([token])))
                if token in self._markers:
                    marks.append(self._chars - self._markers[token])
            if self.stopped:
                break
        finish_reason: FinishReason | None = "stop" if self.stopped else output.finish_reason
        if self._detokenizer is not None and finish_reason is not None and not self.stopped:
            text += [self._search(self._detokenizer.finish()), self._scanner.finish()]
            finish_reason = "stop" if self.stopped else output.finish_reason
        return self._commit(output, "".join(text), offsets, marks, finish_reason)

    def _search(self, text: str) -> str:
        """Return new and held-back text that cannot become part of a stop string.

        ``text`` is that of the newest token.
        """
        self._chars += len(text)
        return self._scanner.feed(text, ends=len(self.token_ids) > self._min_tokens)

    def _commit(
        self,
        output: Output,
        text: str,
        offsets: list[int],
        marks: list[int],
        finish_reason: FinishReason | None,
    ) -> Delta:
        self.finish_reason = finish_reason
        self._parts.append(text)
        logprobs = None
        if output.generated.logprobs is not None:
            logprobs = output.generated.logprobs[: len(offsets)]
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += logprobs
        return Delta(
            text=text,
            token_ids=output.tokens[: len(offsets)],
            logprobs=logprobs,
            text_offsets=offsets,
            marks=marks,
            finish_reason=finish_reason,
        )


class TokenText(msgspec.Struct, frozen=True):
    """A token as answers show it: text (U+FFFD for a part of a character), bytes, log-probability."""

    text: str
    bytes: bytes
    logprob: float


def describe(tokenizer: Tokenizer, entry: TokenLogprob) -> tuple[TokenText, list[TokenText]]:
    """Return the sampled token, and its alternatives in descending order of probability."""
    chosen, *top = [
        TokenText(tokenizer.token_text(token), tokenizer.token_bytes(token), logprob)
        for token, logprob in ((entry.token, entry.logprob), *entry.top)
    ]
    return chosen, top
