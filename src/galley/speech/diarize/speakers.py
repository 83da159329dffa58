"""Transcripts by speaker: each word gets the speaker of its time, and a segment has one speaker."""

import itertools
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from typing import Final

import msgspec

from galley.speech.diarize.diarizer import Diarization, letter
from galley.speech.diarize.turns import Turn
from galley.speech.results import Segment, Word
from galley.speech.words import words_of

_BACK_SECONDS: Final = 120.0
"""Turns that ended longer ago are of no word any more. No turn is that long after another one."""
_PAUSE_SECONDS: Final = 1.5
"""A longer pause begins a new segment, though the speaker is the same."""
_LONGEST_SECONDS: Final = 30.0
"""Segments are joined up to this length."""


class TurnMerger:
    """Joins segments of one speaker that follow each other, in order, and numbers them."""

    def __init__(self) -> None:
        self._held: Segment | None = None
        self._ids = itertools.count()

    def take(self, segment: Segment) -> list[Segment]:
        """Add the next segment, and return the one before if it is final."""
        held = self._held
        if held is not None and _follows(held, segment):
            self._held = _joined(held, segment)
            return []
        final, self._held = self.end(), segment
        return final

    def end(self) -> list[Segment]:
        """Return the last segment, if there is one."""
        last, self._held = self._held, None
        return [] if last is None else [msgspec.structs.replace(last, id=next(self._ids))]


class SpeakerLabels:
    """Gives the segments of one recording their speakers, in order.

    Args:
        diarization: who speaks when.
        merges: join segments of one speaker that follow each other.
    """

    def __init__(self, diarization: Diarization, *, merges: bool) -> None:
        self._names = diarization.names
        self._turns = diarization.turns
        self._merger = TurnMerger() if merges else None
        self._first = 0
        self._ids = itertools.count()

    def take(self, segment: Segment) -> list[Segment]:
        """Add the next segment, and return those that are final."""
        parts = self._split(segment)
        if self._merger is None:
            return [msgspec.structs.replace(part, id=next(self._ids)) for part in parts]
        return [final for part in parts for final in self._merger.take(part)]

    def end(self) -> list[Segment]:
        """Return the segments that are left."""
        return [] if self._merger is None else self._merger.end()

    def _split(self, segment: Segment) -> Iterator[Segment]:
        words = words_of(segment, segment.language or "en")
        if not self._turns or not words:
            name = self._names[0] if self._names else letter(0)
            yield msgspec.structs.replace(segment, speaker=name)
            return
        pairs = [(self._speaker(word), word) for word in words]
        groups = [(who, [w for _, w in group]) for who, group in itertools.groupby(pairs, _who)]
        if len(groups) == 1:
            yield msgspec.structs.replace(segment, speaker=self._names[groups[0][0]])
            return
        for speaker, said in groups:
            # The tokens of a part are not known.
            yield msgspec.structs.replace(
                segment,
                text="".join(word.text for word in said),
                start=said[0].start,
                end=said[-1].end,
                words=None if segment.words is None else tuple(said),
                tokens=(),
                speaker=self._names[speaker],
            )

    def _speaker(self, word: Word) -> int:
        """Return who speaks for most of a word, or else nearest to it."""
        turns = self._turns
        while self._first < len(turns) - 1 and turns[self._first].end < word.start - _BACK_SECONDS:
            self._first += 1
        after = bisect_left(turns, word.end + _BACK_SECONDS, key=_start)
        near = turns[self._first : after]
        return max(near, key=lambda turn: _distance(turn, word), default=turns[self._first]).speaker


def _start(turn: Turn) -> float:
    return turn.start


def _who(pair: tuple[int, Word]) -> int:
    return pair[0]


def _distance(turn: Turn, word: Word) -> tuple[float, float]:
    """Return the overlap of a turn and a word, negative if they are apart; a shorter turn wins a tie.

    During overlapping speech the text is more likely that of a short remark than of the speech around it.
    """
    return min(turn.end, word.end) - max(turn.start, word.start), turn.start - turn.end


def _follows(before: Segment, after: Segment) -> bool:
    return (
        before.speaker == after.speaker
        and before.language == after.language
        and after.start - before.end <= _PAUSE_SECONDS
        and after.end - before.start <= _LONGEST_SECONDS
    )


def _joined(before: Segment, after: Segment) -> Segment:
    words = None
    if before.words is not None and after.words is not None:
        words = before.words + after.words
    weight = len(before.text) / max(1, len(before.text) + len(after.text))
    return msgspec.structs.replace(
        before,
        end=max(before.end, after.end),
        text=before.text + after.text,
        words=words,
        tokens=before.tokens + after.tokens,
        avg_logprob=weight * before.avg_logprob + (1 - weight) * after.avg_logprob,
    )


def labeled(segments: Iterable[Segment], labels: SpeakerLabels) -> Iterator[Segment]:
    """Yield a transcript's segments with their speakers, each once it is final."""
    for segment in segments:
        yield from labels.take(segment)
    yield from labels.end()


async def label_stream(
    segments: AsyncIterator[Segment], labels: SpeakerLabels
) -> AsyncGenerator[Segment, None]:
    """Yield a transcript's segments with their speakers, each once it is final."""
    async for segment in segments:
        for final in labels.take(segment):
            yield final
    for final in labels.end():
        yield final


def as_rttm(name: str, diarization: Diarization) -> Iterator[str]:
    """Yield the lines of an RTTM file (NIST RT-09, appendix A).

    Args:
        name: of the recording; blanks in names become underscores, as fields are separated by blanks.
        diarization: who speaks when.
    """
    for turn in diarization.turns:
        speaker = diarization.names[turn.speaker]
        yield (
            f"SPEAKER {_field(name)} 1 {turn.start:.3f} {turn.end - turn.start:.3f} <NA> <NA> "
            f"{_field(speaker)} <NA> <NA>\n"
        )


def _field(text: str) -> str:
    return "_".join(text.split()) or "_"


def by_channel(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments in the order of time with a speaker for each channel: A is the first."""
    merger = TurnMerger()
    found: list[Segment] = []
    for segment in segments:
        assert segment.channel is not None
        name = letter(segment.channel - 1)
        found += merger.take(msgspec.structs.replace(segment, speaker=name))
    return [*found, *merger.end()]
