"""Word times of a chunk, computed from its token times.

Alignment has no token for a pause, so an adjacent word or full stop absorbs the pause's time. The
corrections of such words and of punctuation are those of openai/whisper's ``add_word_timestamps``.
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

OPENING: Final = "\"'“¡¿([{-"
CLOSING: Final = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
_SENTENCE_END: Final = ".。!！?？"  # noqa: RUF001
_USUAL_SECONDS: Final = 0.7
"""Upper limit of a chunk's usual word length in seconds, which is the median over its words."""
_TRUSTED_SECONDS: Final = 0.5
"""A word that exceeds its segment's timestamps by more than this is corrected to the timestamps."""


@dataclass(slots=True)
class _TimedWord:
    text: str
    start: float
    end: float
    probability: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def time_words(
    segments: Sequence[DecodedSegment], times: Sequence[float], tokenizer: Tokenizer, language: str
) -> list[list[Word]]:
    """Return the words of each segment, in order and without overlap, with times in the chunk.

    Args:
        segments: the segments of one chunk, none without text.
        times: start of each of the segments' tokens and end of the last one, in seconds of the chunk.
        tokenizer: the model's tokenizer.
        language: code of the text's language.
    """
    by_segment, first = [], 0
    for segment in segments:
        by_segment.append(_timed_words(segment, times[first:], tokenizer, language))
        first += len(segment.tokens)
    everything = list(itertools.chain(*by_segment))
    lengths = [word.seconds for word in everything if word.seconds]
    usual = min(_USUAL_SECONDS, statistics.median(lengths)) if lengths else 0.0
    _shorten_at_sentence_ends(everything, 2 * usual)
    speech_until = 0.0
    timed = []
    for segment, words in zip(segments, by_segment, strict=True):
        words = _with_punctuation(words)
        _shorten_after_pause(words, speech_until, usual)
        _fit(words, segment, usual)
        speech_until = words[-1].end
        timed.append([Word(w.text, w.start, w.end, w.probability) for w in words])
    return timed


def _timed_words(
    segment: DecodedSegment, times: Sequence[float], tokenizer: Tokenizer, language: str
) -> list[_TimedWord]:
    """Return the segment's words as aligned; ``times`` begins with the segment's first token."""
    words, first = [], 0
    for text, count in split_to_word_tokens(segment.tokens, tokenizer, language):
        end = first + count
        probability = statistics.fmean(map(math.exp, segment.scores[first:end]))
        words.append(_TimedWord(text, times[first], times[end], probability))
        first = end
    return words


def _shorten_at_sentence_ends(words: Sequence[_TimedWord], most: float) -> None:
    for before, word in itertools.pairwise(words):
        if word.seconds <= most:
            continue
        if word.text in _SENTENCE_END:
            word.end = word.start + most
        elif before.text in _SENTENCE_END:
            word.start = word.end - most


def _with_punctuation(words: Sequence[_TimedWord]) -> list[_TimedWord]:
    """Join opening marks to the next word and closing marks to the previous one, keeping word times."""
    opened: list[_TimedWord] = []
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in OPENING:
            opened[-1].text = word.text + opened[-1].text
        else:
            opened.append(word)
    whole: list[_TimedWord] = []
    for word in reversed(opened):
        closes = word.text in CLOSING or not word.text.strip()
        if closes and whole and not whole[-1].text.endswith(" "):
            whole[-1].text += word.text
        else:
            whole.append(word)
    return whole


def _shorten_after_pause(words: Sequence[_TimedWord], speech_until: float, usual: float) -> None:
    """Shorten the first two words of a segment after a pause; earlier speech ended at ``speech_until``."""
    most = 2 * usual
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - speech_until <= 2 * most:
        return
    if first.seconds <= most and (second is None or second.end - first.start <= 2 * most):
        return
    if second is not None and second.seconds > most:
        first.end = second.start = second.end - most
    first.start = first.end - most


def _fit(words: Sequence[_TimedWord], segment: DecodedSegment, usual: float) -> None:
    """Move a first or last word that extends far beyond the segment's timestamps back to them."""
    first, last = words[0], words[-1]
    if first.start + _TRUSTED_SECONDS < segment.start < first.end:
        first.start = max(first.start, min(first.end - usual, segment.start))
    if last.start < segment.end < last.end - _TRUSTED_SECONDS:
        last.end = min(last.end, max(last.start + usual, segment.end))
