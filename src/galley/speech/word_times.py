"""When each word of a window is said, from where its tokens begin.

What is done about words that are too long, and punctuation, is openai/whisper's ``add_word_timestamps``: a
pause has no token, so that a word beside it, or a full stop, takes it.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from galley.speech.results import Word
from galley.speech.tokens import DecodedSegment
from galley.speech.word_tokens import split_to_word_tokens
from galley.text.tokenizer import Tokenizer

_OPENING: Final = "\"'“¡¿([{-"
_CLOSING: Final = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
_SENTENCE_END: Final = ".。!！?？"  # noqa: RUF001
_USUAL_SECONDS: Final = 0.7
"""Of a word, at most."""
_TRUSTED_SECONDS: Final = 0.5
"""A word may lie so far beyond its segment's times before these are trusted more."""


@dataclass(slots=True)
class _Spoken:
    text: str
    start: float
    end: float
    probability: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def time_words(
    pieces: Sequence[DecodedSegment], times: Sequence[float], tokenizer: Tokenizer, language: str
) -> list[list[Word]]:
    """The words of each piece, in order and without overlap.

    Args:
        pieces: of one window, none blank.
        times: seconds of the window where each of their tokens begins, and where the last one ends.
        tokenizer: that of the model.
        language: of the text, as a code.
    """
    spoken, first = [], 0
    for piece in pieces:
        spoken.append(_spoken(piece, times[first:], tokenizer, language))
        first += len(piece.tokens)
    everything = list(itertools.chain(*spoken))
    lengths = [word.seconds for word in everything if word.seconds]
    usual = min(_USUAL_SECONDS, statistics.median(lengths)) if lengths else 0.0
    _shorten_at_sentence_ends(everything, 2 * usual)
    heard_until = 0.0
    timed = []
    for piece, words in zip(pieces, spoken, strict=True):
        words = _with_punctuation(words)
        _shorten_after_pause(words, heard_until, usual)
        _fit(words, piece, usual)
        heard_until = words[-1].end
        timed.append([Word(w.text, w.start, w.end, w.probability) for w in words])
    return timed


def _spoken(
    piece: DecodedSegment, times: Sequence[float], tokenizer: Tokenizer, language: str
) -> list[_Spoken]:
    """``times`` begin with the piece's first token."""
    words, first = [], 0
    for text, count in split_to_word_tokens(piece.tokens, tokenizer, language):
        end = first + count
        probability = statistics.fmean(map(math.exp, piece.scores[first:end]))
        words.append(_Spoken(text, times[first], times[end], probability))
        first = end
    return words


def _shorten_at_sentence_ends(words: Sequence[_Spoken], most: float) -> None:
    for before, word in itertools.pairwise(words):
        if word.seconds <= most:
            continue
        if word.text in _SENTENCE_END:
            word.end = word.start + most
        elif before.text in _SENTENCE_END:
            word.start = word.end - most


def _with_punctuation(words: Sequence[_Spoken]) -> list[_Spoken]:
    """Opening marks go to the next word and closing ones to the last; the time stays the word's."""
    opened: list[_Spoken] = []
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in _OPENING:
            opened[-1].text = word.text + opened[-1].text
        else:
            opened.append(word)
    whole: list[_Spoken] = []
    for word in reversed(opened):
        closes = word.text in _CLOSING or not word.text.strip()
        if closes and whole and not whole[-1].text.endswith(" "):
            whole[-1].text += word.text
        else:
            whole.append(word)
    return whole


def _shorten_after_pause(words: Sequence[_Spoken], heard_until: float, usual: float) -> None:
    """Of a piece's first two words; speech before it ended at ``heard_until``."""
    most = 2 * usual
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - heard_until <= 2 * most:
        return
    if first.seconds <= most and (second is None or second.end - first.start <= 2 * most):
        return
    if second is not None and second.seconds > most:
        first.end = second.start = second.end - most
    first.start = first.end - most


def _fit(words: Sequence[_Spoken], piece: DecodedSegment, usual: float) -> None:
    """The model's own times of the piece count where its first or last word reaches far beyond them."""
    first, last = words[0], words[-1]
    if first.start + _TRUSTED_SECONDS < piece.start < first.end:
        first.start = max(first.start, min(first.end - usual, piece.start))
    if last.start < piece.end < last.end - _TRUSTED_SECONDS:
        last.end = min(last.end, max(last.start + usual, piece.end))
