"""Invented text: segments of unlikely words with silence around them (openai/whisper, ``transcribe.py``).

Where nobody speaks, Whisper may write a phrase of its training data. The times and probabilities of its
words show it: they are improbable, or much shorter or longer than spoken ones.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from galley.speech.results import Word
from galley.speech.tokens import LEAST_STEP
from galley.speech.word_times import CLOSING, OPENING

_UNLIKELY: Final = 0.15
_SHORTEST_SECONDS: Final = 0.133
_LONGEST_SECONDS: Final = 2.0
_SHORT_WEIGHT: Final = 15
"""Score of each second that a word is too short; a second too long scores 1."""
_WORDS: Final = 8
"""Number of words at a segment's start that are judged."""
_ANOMALOUS: Final = 3.0
_EDGE_SECONDS: Final = 2.0
"""Text this close to an edge of the encoder input has silence on that side."""
_AFTER_TEXT: Final = 1.0
"""Minimum time, in seconds, at which decoding continues where text before it is kept."""


class Cut(NamedTuple):
    """Which segments to keep, and where to decode again.

    Attributes:
        kept: number of segments to keep, from the first one.
        resume: time in the encoder input from which to decode again, in seconds; None: nowhere.
    """

    kept: int
    resume: float | None


def find_invented(
    segments: Sequence[Sequence[Word]],
    *,
    seconds: float,
    window: float,
    silence: float,
    threshold: float,
) -> Cut | None:
    """Return where invented text begins; None if there is none.

    Args:
        segments: words of each segment, at least one, with times in the encoder input.
        seconds: length of the audio in the encoder input.
        window: length of the encoder input.
        silence: seconds from the last word before the encoder input to its start.
        threshold: minimum silence around invented text, in seconds.
    """
    if not segments:
        return None
    gap = segments[0][0].start
    if _is_anomalous(segments[0]) and gap > max(threshold, LEAST_STEP):
        return Cut(0, gap)
    speech_end = -silence
    for index, words in enumerate(segments):
        start, end = words[0].start, words[-1].end
        following = segments[index + 1] if index + 1 < len(segments) else None
        if _is_anomalous(words):
            next_start = seconds if following is None else following[0].start
            before = start - speech_end > threshold or start < max(threshold, _EDGE_SECONDS)
            after = (
                next_start - end > threshold
                or (following is not None and _is_anomalous(following))
                or window - end < _EDGE_SECONDS
            )
            if before and after:
                at_end = seconds - end < threshold
                return Cut(index, None if at_end else max(_AFTER_TEXT, start))
        speech_end = end
    return None


def _is_anomalous(segment: Sequence[Word]) -> bool:
    marks = OPENING + CLOSING
    words = [word for word in segment if word.text.strip() not in marks][:_WORDS]
    score = sum(map(_score, words))
    return score >= _ANOMALOUS or score + 0.01 >= len(words)


def _score(word: Word) -> float:
    seconds = word.end - word.start
    score = float(word.probability is not None and word.probability < _UNLIKELY)
    score += _SHORT_WEIGHT * max(0.0, _SHORTEST_SECONDS - seconds)
    return score + max(0.0, seconds - _LONGEST_SECONDS)
