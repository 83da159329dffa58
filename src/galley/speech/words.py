"""Segments and their words: estimated times, removal of words and changes of times."""

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from galley.speech.languages import UNSPACED
from galley.speech.results import Segment, Word
from galley.text.tokenizer import Tokenizer


def words_of(segment: Segment, language: str) -> list[Word]:
    """Return the segment's words; their texts, joined, are the segment's text.

    If the segment has no word times, they are interpolated from the position of the words' characters.
    """
    if segment.words is not None:
        return list(segment.words)
    pattern = r"\s*\S\s*$|\s*\S" if language in UNSPACED else r"\s*\S+\s*$|\s*\S+"
    length = max(1, len(segment.text))

    def time(position: int) -> float:
        return segment.start + (segment.end - segment.start) * position / length

    return [
        Word(match[0], time(match.start()), time(match.end()))
        for match in re.finditer(pattern, segment.text)
    ]


def after_space(segment: Segment) -> Segment:
    """Return the segment with a leading space, so that it can follow another segment."""
    if segment.text[:1].isspace():
        return segment
    words = segment.words
    if words:
        first = msgspec.structs.replace(words[0], text=f" {words[0].text}")
        words = (first, *words[1:])
    return msgspec.structs.replace(segment, text=f" {segment.text}", words=words)


def keep_words(
    segments: Sequence[Segment], words: Sequence[Sequence[Word]], kept: slice, tokenizer: Tokenizer
) -> list[Segment]:
    """Return the segments with only some of their words, without segments that have no words left.

    Args:
        segments: the segments in order.
        words: the words of each segment.
        kept: the range of words, over all segments, to keep.
        tokenizer: encodes the text of a segment that loses words.
    """
    return list(_kept(segments, words, kept, tokenizer))


def _kept(
    segments: Sequence[Segment], words: Sequence[Sequence[Word]], kept: slice, tokenizer: Tokenizer
) -> Iterator[Segment]:
    numbers = set(range(sum(map(len, words)))[kept])
    counter = itertools.count()
    for segment, its_words in zip(segments, words, strict=True):
        left = [word for word in its_words if next(counter) in numbers]
        if len(left) == len(its_words):
            yield segment
        elif left:
            text = "".join(word.text for word in left)
            yield msgspec.structs.replace(
                segment,
                start=round(left[0].start, 3),
                end=round(left[-1].end, 3),
                text=text,
                tokens=tuple(tokenizer.encode_plain(text)),
                words=None if segment.words is None else tuple(left),
            )


def moved(word: Word, start: float, end: float) -> Word:
    """Return the word with new times, rounded to milliseconds."""
    return msgspec.structs.replace(word, start=round(start, 3), end=round(end, 3))


def not_before(seconds: float, segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments with all times before ``seconds``, including word times, raised to it."""
    return [_not_before(seconds, segment) for segment in segments]


def _not_before(seconds: float, segment: Segment) -> Segment:
    if segment.start >= seconds:
        return segment
    words = segment.words
    if words is not None:
        words = tuple(moved(w, max(w.start, seconds), max(w.end, seconds)) for w in words)
    end = max(segment.end, seconds)
    return msgspec.structs.replace(segment, start=seconds, end=end, words=words)
