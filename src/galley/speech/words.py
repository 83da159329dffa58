"""Words of a segment whose model gave times for the segment alone."""

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from galley.speech.languages import UNSPACED
from galley.speech.results import Segment, Word
from galley.text.tokenizer import Tokenizer


def split_words(segment: Segment, language: str) -> list[Word]:
    """Its words; their texts joined are the segment's, their times are their share of its characters."""
    pattern = r"\s*\S\s*$|\s*\S" if language in UNSPACED else r"\s*\S+\s*$|\s*\S+"
    length = max(1, len(segment.text))

    def time(position: int) -> float:
        return segment.start + (segment.end - segment.start) * position / length

    return [
        Word(match[0], time(match.start()), time(match.end()))
        for match in re.finditer(pattern, segment.text)
    ]


def keep_words(
    segments: Sequence[Segment], words: Sequence[Sequence[Word]], kept: slice, tokenizer: Tokenizer
) -> list[Segment]:
    """The segments with only some of their words.

    Args:
        segments: in order.
        words: of each of them.
        kept: which of all these words stay.
        tokenizer: spells what is left of a segment that loses words.
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
            )
