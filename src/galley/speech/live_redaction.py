"""Redaction of live transcripts: text is held back until no passage that is to be removed can reach it."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from galley.redact.spans import Kind
from galley.speech.live_events import Completed, Delta, Failed, Interim, LiveEvent
from galley.speech.redaction import Redactor
from galley.speech.results import Segment


class LiveRedactor:
    """Redacts the events of one live stream.

    A number may continue in the next turn, so deltas are held back across turns, and a turn's last event
    follows its deltas. Other events pass at once. Interim texts are dropped: they are not final.

    Args:
        kinds: the kinds of passages to remove.
    """

    def __init__(self, kinds: Collection[Kind]) -> None:
        self._redactor = Redactor(kinds)
        self._ended: deque[Completed | Failed] = deque()
        """Last events of turns, in order."""
        self._given: dict[int, list[str]] = {}
        """Turn -> its deltas that were given out."""
        self._open: set[int] = set()
        self._discarded: set[int] = set()

    @property
    def kinds(self) -> Collection[Kind]:
        """The kinds of passages that are removed."""
        return self._redactor.kinds

    @property
    def counts(self) -> dict[Kind, int]:
        """How many passages of each kind were removed so far."""
        return dict(Counter(passage.kind for passage in self._redactor.passages))

    def take(self, events: Iterable[LiveEvent]) -> list[LiveEvent]:
        """Add the next events, and return those that may be given out."""
        final: list[LiveEvent] = []
        for event in events:
            match event:
                case Interim():
                    pass
                case Delta():
                    final += self._released(self._redactor.take(self._segment(event)))
                case Completed() | Failed():
                    self._open.discard(event.turn)
                    self._ended.append(event)
                    final += self._released([])
                case _:
                    final.append(event)
        return final

    def rest(self) -> list[LiveEvent]:
        """Return all that is held back; what comes later is not part of a passage in it."""
        return list(self._released(self._redactor.end()))

    def discard(self) -> None:
        """Forget the open turn, which the client has cleared: no more of it is given out."""
        self._discarded |= self._open
        self._open.clear()

    def _segment(self, event: Delta) -> Segment:
        text = event.text
        if event.turn not in self._open:
            self._open.add(event.turn)
            # Otherwise the last word of one turn and the first of the next would be one.
            text = f" {text.lstrip()}"
        return Segment(id=event.turn, start=0.0, end=0.0, text=text)

    def _released(self, segments: Iterable[Segment]) -> Iterator[LiveEvent]:
        """Yield the deltas of released text, and the last events of turns of which nothing is held back."""
        for segment in segments:
            turn = segment.id
            yield from self._complete(turn)
            if turn in self._discarded:
                continue
            given = self._given.setdefault(turn, [])
            text = segment.text if given else segment.text.lstrip()
            given.append(text)
            yield Delta(turn, text)

        held = self._redactor.held
        yield from self._complete(held[0].id if held else None)

    def _complete(self, before: int | None) -> Iterator[Completed | Failed]:
        """Yield the last events of the turns before one; None: of all."""
        while self._ended and (before is None or self._ended[0].turn < before):
            event = self._ended.popleft()
            given = self._given.pop(event.turn, [])
            if isinstance(event, Completed):
                event = replace(event, text="".join(given))
            yield event
