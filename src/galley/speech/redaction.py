"""Redaction of transcripts: one list of spans over the text, its words and the audio.

A span is found in the text of consecutive segments, since a number may be spread over several. It is then
removed from the text, from the words and from the token ids of every segment that it touches, and its time
in the recording follows from its words.
"""

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from galley.errors import RequestError
from galley.redact.find import find_spans
from galley.redact.spans import KINDS, Kind, Span, label
from galley.speech.results import Segment, Word

_LOOKAHEAD: Final = 400
"""Characters that must follow a segment before it is final: a spoken card number takes some 250."""

_CONTEXT: Final = 200
"""Characters before a segment in which the words that introduce a number are looked for."""

_MOST_HELD: Final = 2000
"""Characters that may wait for the end of a span. One that is longer, such as endless digits, is cut."""

_PAD_SECONDS: Final = 0.15
"""Audio silenced before and after a span: times of words are within about a tenth of a second."""


class Passage(NamedTuple):
    """A redacted passage of a recording, in seconds."""

    kind: Kind
    start: float
    end: float


def check_kinds(names: Iterable[str]) -> tuple[Kind, ...]:
    """Return the named kinds in the order of :data:`KINDS`; "all" stands for all of them.

    Raises:
        RequestError: there is no such kind.
    """
    wanted = set(names)
    for name in wanted:
        if name != "all" and name not in KINDS:
            raise RequestError(
                f"unknown kind {name[:64]!r} to redact; supported: all, {', '.join(KINDS)}",
                param="redact",
            )
    return tuple(kind for kind in KINDS if "all" in wanted or kind in wanted)


@dataclass
class Redactor:
    """Redacts the segments of one recording in order; holds back those that a span may still reach.

    Attributes:
        kinds: the kinds of spans to redact.
        passages: where the recording contains a span, for segments that are final.
    """

    kinds: Collection[Kind]
    passages: list[Passage] = field(default_factory=list)
    _held: list[Segment] = field(default_factory=list)
    _before: str = ""
    _names: set[str] = field(default_factory=set)

    @property
    def held(self) -> Sequence[Segment]:
        """The segments that are held back, unredacted."""
        return self._held

    def take(self, segment: Segment) -> list[Segment]:
        """Add the next segment, and return those that have become final."""
        self._held.append(segment)
        return self._release(_LOOKAHEAD)

    def end(self) -> list[Segment]:
        """Return the remaining segments; the recording has no more."""
        return self._release(0)

    def _release(self, lookahead: int) -> list[Segment]:
        ends = list(itertools.accumulate(len(segment.text) for segment in self._held))
        count = sum(end + lookahead <= ends[-1] for end in ends)
        if not count:
            return []
        offset = len(self._before)
        text = self._before + "".join(segment.text for segment in self._held)
        spans = find_spans(text, self.kinds, self._names)
        final = offset + ends[count - 1]
        # A segment in which a span begins waits for the rest of it.
        whole = count
        cut: Span | None = None
        while count and any(span.start < final < span.end for span in spans):
            count -= 1
            final = offset + (ends[count - 1] if count else 0)
        if not count and ends[-1] > _MOST_HELD:
            count, final = whole, offset + ends[whole - 1]
            cut = next((span for span in spans if span.start < final < span.end), None)
        if not count:
            return []
        for span in spans:
            if span.kind == "name":
                self._names.update(text[span.start : span.end].split())
        inside = [
            Span(span.kind, max(span.start - offset, 0), min(span.end, final) - offset)
            for span in spans
            if offset < span.end and span.start < final
        ]
        released, self._held = self._held[:count], self._held[count:]
        self._before = _context(text, final)
        if cut is not None:
            # The words that introduce a number are needed to find the rest of it.
            part = text[cut.start : final]
            part = part if len(part) <= _CONTEXT else part[-_CONTEXT:].partition(" ")[2]
            self._before = _context(text, cut.start) + part
        starts = [0, *ends]
        self.passages += _passages(released, starts, inside)
        clean = (
            _redacted(segment, _within(inside, start, start + len(segment.text)))
            for segment, start in zip(released, starts, strict=False)
        )
        return [segment for segment in clean if segment.text.strip()]


def _context(text: str, end: int) -> str:
    return text[max(0, end - _CONTEXT) : end]


class _Part(NamedTuple):
    """The part of a span that lies in one segment, in characters of the segment."""

    kind: Kind
    start: int
    end: int
    begins: bool
    """Whether the span begins here: its label stands there once."""


def redacted(segments: Iterable[Segment], kinds: Collection[Kind]) -> list[Segment]:
    """Return a whole transcript's segments without its spans."""
    redactor = Redactor(kinds)
    return [*itertools.chain.from_iterable(map(redactor.take, segments)), *redactor.end()]


async def redact_stream(
    segments: AsyncIterator[Segment], redactor: Redactor
) -> AsyncGenerator[Segment, None]:
    """Yield a transcript's segments without its spans, each once no span can reach it any more."""
    async for segment in segments:
        for final in redactor.take(segment):
            yield final
    for final in redactor.end():
        yield final


def _within(spans: Iterable[Span], start: int, end: int) -> list[_Part]:
    return [
        _Part(
            span.kind,
            max(span.start, start) - start,
            min(span.end, end) - start,
            start <= span.start,
        )
        for span in spans
        if span.start < end and span.end > start
    ]


def _redacted(segment: Segment, parts: Sequence[_Part]) -> Segment:
    """Return a segment without the parts of spans in it."""
    if not parts:
        return segment
    pieces, position = [], 0
    for part in parts:
        pieces += [segment.text[position : part.start], label(part.kind) if part.begins else ""]
        position = part.end
    words = segment.words and tuple(_words(segment, parts))
    text = "".join(pieces) + segment.text[position:]
    # Token ids spell the text, so they go, too.
    return msgspec.structs.replace(segment, text=text, words=words, tokens=())


def _words(segment: Segment, parts: Sequence[_Part]) -> Iterator[Word]:
    """Yield a segment's words, with one word in place of those that a span touches."""
    for part, group in itertools.groupby(_placed(segment, parts), key=lambda placed: placed[1]):
        words = [word for word, _ in group]
        if part is None:
            yield from words
        elif part.begins:
            text = f"{' ' * words[0].text.startswith(' ')}{label(part.kind)}"
            yield Word(text, words[0].start, words[-1].end)


def _placed(segment: Segment, parts: Sequence[_Part]) -> Iterator[tuple[Word, _Part | None]]:
    """Yield each word with the first part of a span that it touches.

    A word that is not found in the text touches the first part, so that nothing is kept by mistake.
    """
    position = 0
    for word in segment.words or ():
        text = word.text.strip()
        start = segment.text.find(text, position)
        if start < 0:
            yield word, parts[0]
            continue
        position = start + len(text)
        yield word, next((p for p in parts if p.start < position and p.end > start), None)


def _passages(
    segments: Sequence[Segment], starts: Sequence[int], spans: Iterable[Span]
) -> Iterator[Passage]:
    """Yield where in the recording each span is said: the times of its words, or of whole segments."""
    for span in spans:
        times: list[tuple[float, float]] = []
        for segment, start in zip(segments, starts, strict=False):
            parts = _within([span], start, start + len(segment.text))
            if not parts:
                continue
            touched = [word for word, part in _placed(segment, parts) if part is not None]
            aligned = touched and all(word.probability is not None for word in touched)
            whole = [(segment.start, segment.end)]
            times += [(word.start, word.end) for word in touched] if aligned else whole
        first, last = min(time[0] for time in times), max(time[1] for time in times)
        yield Passage(span.kind, max(0.0, first - _PAD_SECONDS), last + _PAD_SECONDS)
