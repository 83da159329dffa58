"""Incremental detokenization: text from tokens as they arrive, never a part of a character."""

import codecs
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from galley.text.tokenizer import Tokenizer

_LONGEST_HEAD: Final = 1024
"""Number of tokens without text after which the beginning of a sequence is over."""


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text, in linear time.

    The concatenated results of :meth:`feed` and :meth:`finish` equal ``tokenizer.decode`` of all
    tokens with special tokens skipped (except those to be shown), however the tokens were divided
    among calls.
    """

    def feed(self, tokens: Iterable[int]) -> str:
        """Add the next tokens; return the text that is final, which may lag behind them."""

    def finish(self) -> str:
        """Return the remaining text; an incomplete character becomes U+FFFD. No calls may follow."""


def detokenizer(
    tokenizer: Tokenizer, *, at_start: bool = True, shown: AbstractSet[int] = frozenset()
) -> Detokenizer:
    """Create a detokenizer that suits the tokenizer.

    Args:
        tokenizer: the model's tokenizer.
        at_start: whether to drop a space before the first word, if the tokenizer's decoder does so
            (SentencePiece); otherwise the text is that of the tokens from the first byte on.
        shown: special tokens that are not skipped.
    """
    skipped = tokenizer.special_ids - shown
    return (
        _Utf8(tokenizer, skipped) if tokenizer.byte_level else _Pieces(tokenizer, skipped, at_start)
    )


class _Utf8:
    """Detokenizer for byte-level vocabularies: a token is bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer, skipped: AbstractSet[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Iterable[int]) -> str:
        skipped = self._skipped
        token_bytes = self._tokenizer.token_bytes
        return self._decoder.decode(b"".join(token_bytes(t) for t in tokens if t not in skipped))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Pieces:
    """Detokenizer for SentencePiece vocabularies: a token is text, or one byte of a run of bytes.

    A run of bytes is decoded as a whole: one byte that is not UTF-8 makes every byte of the run
    U+FFFD. So a run is held back until a token that is text ends it.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: AbstractSet[int], at_start: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._run: list[str] = []
        self._head: list[str] = []  # all pieces so far, while they have no text
        self._started = not at_start

    def feed(self, tokens: Iterable[int]) -> str:
        text = []
        for token in tokens:
            piece = self._tokenizer.piece(token)
            if piece is None or token in self._skipped:
                continue
            if self._tokenizer.is_byte(piece):
                self._run.append(piece)
                continue
            text += [self._take_run(), self._join([piece])]
        return "".join(text)

    def finish(self) -> str:
        return self._take_run()

    def _take_run(self) -> str:
        run, self._run = self._run, []
        return self._join(run) if run else ""

    def _join(self, pieces: list[str]) -> str:
        if self._started:
            return self._tokenizer.join(pieces, at_start=False)
        self._head += pieces
        text = self._tokenizer.join(self._head, at_start=True)
        self._started = bool(text) or len(self._head) > _LONGEST_HEAD
        return text
