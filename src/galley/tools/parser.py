"""What the parsers of all formats have in common: text in as it comes, events out once they are certain.

A parser is written as a generator that reads the answer from its beginning to its end and waits where more
text is needed. What is fed decides only when it waits, so the events do not depend on how the text was
divided, and each character is looked at a bounded number of times.
"""

import uuid
from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from galley.tools.conversation import TOOL_NAME, Tool
from galley.tools.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text
from galley.tools.json_call import JsonCall, NotACall
from galley.tools.json_text import JsonText

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

LONGEST_NAME: Final = 256
"""Characters of what stands where a name is expected."""

_CUT: Final = "the answer ends within a call"


class ThinkingMarkers(NamedTuple):
    """What stands before and behind a model's thinking."""

    begin: str
    end: str


class Parser:
    """The events of one answer; by itself of one without calls. A format overrides :meth:`_answer`.

    Attributes:
        reasoning_spans: where the text that was fed is thinking, markers included: pairs of offsets in
            characters, in order. The last one may still grow.
        calls: how many complete ones there were.
        finished: no more text is wanted, as the one call that was allowed is complete.
    """

    MARKERS: ClassVar[tuple[str, ...]] = ()
    """Of the format, which must be in the text that is fed, whether they are special tokens or not."""

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        parallel: bool = True,
        thinking: ThinkingMarkers | None = None,
        in_thinking: bool = False,
        tokens: Collection[str] = (),
        constrained: bool = False,
    ) -> None:
        """Args:
        tools: that may be called.
        parallel: several calls may come; else the answer ends with the first.
        thinking: how the model marks its thinking, which may stand at the beginning; None: it does not.
        in_thinking: the prompt ends within the thinking.
        tokens: markers that are one token of the model's: their text counts only where that token came, as
            in the grammars of answers. What the model spells in other tokens is text.
        """
        self.reasoning_spans: list[tuple[int, int]] = []
        self.calls = 0
        self.finished = False
        self._schemas: Mapping[str, Mapping[str, Any]] = {t.name: t.schema for t in tools}
        self._parallel = parallel
        self._thinking = thinking
        self._in_thinking = in_thinking
        self._tokens = frozenset(tokens)
        self._constrained = constrained
        self._marks: deque[int] = (
            deque()
        )  # positions in all of the text where a marker's token came
        self._buffer = ""
        self._at = 0
        self._position = 0  # of `_at` in all of the text
        self._ended = False
        self._events: list[Event] = []
        self._spaces: list[str] = []  # behind the text, and part of it if more text follows
        self._raw: list[str] = []  # what has been read of the call at hand
        self._index = 0
        self._started = False
        self._steps = self._run()

    def feed(self, text: str, marks: Iterable[int] = ()) -> list[Event]:
        """Take more of the answer; returns what has become certain.

        ``marks`` are the places in all of the text, in order, where a marker's token came. They may come
        before the text does.
        """
        self._marks.extend(marks)
        if not self.finished:
            while self._marks and self._marks[0] < self._position:
                self._marks.popleft()
            self._buffer = self._buffer[self._at :] + text
            self._at = 0
            next(self._steps, None)
        return self._taken()

    def finish(self) -> list[Event]:
        """The answer has ended. No calls may follow."""
        self._ended = True
        if not self.finished:
            next(self._steps, None)
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _run(self) -> Steps[None]:
        if self._thinking is not None:
            yield from self._think(self._thinking)
        yield from self._answer()
        if not self.calls:
            self._say_spaces()

    def _answer(self) -> Steps[None]:
        """Read all that comes behind the thinking."""
        yield from self._text_until()

    # Reading. What is read counts as part of the call at hand.

    def _more(self) -> Steps[bool]:
        """Wait for more text; False if none will come."""
        if self._ended:
            return False
        yield
        return True

    def _read(self, count: int) -> str:
        text = self._buffer[self._at : self._at + count]
        self._at += count
        self._position += count
        self._raw.append(text)
        return text

    def _unread(self, count: int) -> None:
        """Put back the last characters that were read."""
        self._at -= count
        self._position -= count
        if self._raw:
            self._raw[-1] = self._raw[-1][:-count]

    def _skip_space(self) -> Steps[str]:
        """Read white space; returns the character behind it, which is not read; empty at the end."""
        while True:
            at = self._at
            while at < len(self._buffer) and self._buffer[at].isspace():
                at += 1
            self._read(at - self._at)
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not (yield from self._more()):
                return ""

    def _expect(self, *literals: str) -> Steps[str | None]:
        """Read the longest of ``literals`` that comes next; None, and nothing read, if none does."""
        longest = max(map(len, literals))
        while True:
            rest = self._buffer[self._at : self._at + longest]
            unclear = any(len(x) > len(rest) and x.startswith(rest) for x in literals)
            if not unclear or not (yield from self._more()):
                break
        fit = (x for x in literals if rest.startswith(x) and self._counts(x))
        found = max(fit, key=len, default=None)
        if found is not None:
            self._read(len(found))
        return found

    def _until(self, *markers: str, most: int = LONGEST_NAME) -> Steps[tuple[str, str]]:
        """Read up to one of ``markers``, and the marker. Raises NotACall if it is not among ``most``."""
        parts: list[str] = []
        while True:
            piece, marker = self._piece(markers)
            parts.append(self._read(len(piece)))
            if sum(map(len, parts)) > most:
                raise NotACall(f"a call begins, but {markers[0]!r} does not follow")
            if marker is not None:
                return "".join(parts), self._read(len(marker))
            if not (yield from self._more()):
                raise NotACall(_CUT)

    def _piece(self, markers: Iterable[str]) -> tuple[str, str | None]:
        """The text before the first marker, and that marker; or what can be no part of one, and None."""
        places = [(self._find(marker), marker) for marker in markers]
        found = [(place, -len(marker), marker) for place, marker in places if place >= 0]
        if found:
            place, _, marker = min(found)
            return self._buffer[self._at : place], marker
        keep = 0 if self._ended else _held_back(self._buffer, self._at, markers)
        return self._buffer[self._at : len(self._buffer) - keep], None

    def _find(self, marker: str) -> int:
        """Where the marker comes next in the buffer; -1 if it does not."""
        if marker not in self._tokens:
            return self._buffer.find(marker, self._at)
        places = (mark - self._position + self._at for mark in self._marks)
        here = (place for place in places if place >= self._at)
        return next((place for place in here if self._buffer.startswith(marker, place)), -1)

    def _counts(self, marker: str) -> bool:
        """Whether the text of a marker that comes next is the marker."""
        return marker not in self._tokens or self._position in self._marks

    # Text and thinking.

    def _text_until(self, *markers: str) -> Steps[str | None]:
        """Say all text up to one of ``markers``, with which a call begins; None: up to the end."""
        while True:
            piece, marker = self._piece(markers)
            self._say(self._read(len(piece)))
            self._raw.clear()
            if marker is not None:
                return self._read(len(marker))
            if not (yield from self._more()):
                return None

    def _say(self, text: str) -> None:
        """White space at the end waits for what follows: it is no part of the text before a call."""
        if text.strip():
            words = text.rstrip()
            self._say_spaces()
            self._events.append(Text(words))
            text = text[len(words) :]
        if text:
            self._spaces.append(text)

    def _say_spaces(self) -> None:
        if self._spaces:
            self._events.append(Text("".join(self._spaces)))
            self._spaces.clear()

    def _think(self, markers: ThinkingMarkers) -> Steps[None]:
        begin = self._position
        if not self._in_thinking:
            yield from self._skip_space()
            if (yield from self._expect(markers.begin)) is None:
                self._say("".join(self._raw))
                self._raw.clear()
                return
        yield from self._reason_until(begin, markers.end)
        yield from self._skip_space()
        self._raw.clear()

    def _reason_until(self, begin: int, *ends: str) -> Steps[str | None]:
        """Thinking, which began at ``begin``, up to one of ``ends``, which is read and returned."""
        yield from self._skip_space()
        self.reasoning_spans.append((begin, self._position))
        spaces: list[str] = []
        while True:
            piece, end = self._piece(ends)
            text = self._read(len(piece))
            if text.strip():
                words = text.rstrip()
                self._events.append(Reasoning("".join(spaces) + words))
                spaces.clear()
                text = text[len(words) :]
            spaces.append(text)
            if end is not None:
                self._read(len(end))
            self.reasoning_spans[-1] = (begin, self._position)
            self._raw.clear()
            if end is not None or not (yield from self._more()):
                return end

    # Calls.

    def _attempt(self, calls: Steps[None], *, quiet: bool = False) -> Steps[None]:
        """Read calls; where there is none after all, what has been read is text.

        Args:
            quiet: text that is not even the beginning of a call needs no warning.
        """
        try:
            yield from calls
        except NotACall as error:
            repeats = self._started
            warning = None if quiet and not repeats else str(error)
            if repeats:
                self._events.append(CallEnd(self._index, broken=True))
                self._index += 1
            text = "".join((*self._spaces, *self._raw))
            self._spaces.clear()
            self._raw.clear()
            self._started = False
            if text:
                self._events.append(Text(text, warning, repeats))

    def _start(self, name: str) -> None:
        """A call of ``name`` begins. Raises NotACall for what can be no name."""
        if not TOOL_NAME.fullmatch(name):
            raise NotACall(f"{name[:64]!r} can be no tool's name")
        self._started = True
        self._events.append(CallStart(self._index, f"call_{uuid.uuid4().hex[:24]}", name))

    def _argue(self, text: str) -> None:
        if text:
            self._events.append(Arguments(self._index, text))

    def _end(self) -> Steps[None]:
        """The call at hand is complete. Where no other may follow, the answer ends here."""
        self._events.append(CallEnd(self._index))
        self._index += 1
        self.calls += 1
        self._started = False
        self._raw.clear()
        self._spaces.clear()
        if not self._parallel:
            self.finished = True
            yield

    def _json_call(self, *, known: bool = False) -> Steps[None]:
        """A JSON object with a name and arguments.

        Args:
            known: anything but a call of one of the tools is text.
        """
        call = JsonCall(self._schemas if known else None)
        while not call.complete:
            if self._at == len(self._buffer) and not (yield from self._more()):
                raise NotACall(_CUT)
            try:
                end = call.take(self._buffer, self._at)
            except NotACall:
                self._read(call.read)
                self._told(call)
                raise
            self._read(end - self._at)
            self._told(call)
        yield from self._end()

    def _told(self, call: JsonCall) -> None:
        if call.name is not None:
            if not self._started:
                self._start(call.name)
            self._argue(call.taken())

    def _json_calls(self) -> Steps[None]:
        """A JSON list of calls, or one call."""
        if (yield from self._skip_space()) != "[":
            yield from self._json_call()
            return
        self._read(1)
        while (yield from self._skip_space()) != "]":
            yield from self._json_call()
            if (yield from self._skip_space()) == ",":
                self._read(1)
        self._read(1)

    def _arguments(self) -> Steps[None]:
        """The arguments of a call that has started: a JSON object."""
        if (yield from self._skip_space()) != "{":
            raise NotACall("the arguments are no JSON object")
        value = JsonText()
        while not value.complete:
            if self._at == len(self._buffer) and not (yield from self._more()):
                raise NotACall(_CUT)
            at = self._at
            while at < len(self._buffer) and not value.complete:
                if not value.take(self._buffer[at]):
                    self._argue(self._read(at - self._at))
                    raise NotACall("the arguments are no JSON")
                at += 1
            self._argue(self._read(at - self._at))


def _held_back(text: str, start: int, markers: Iterable[str]) -> int:
    """Length of the longest end of ``text`` with which a marker may begin."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text) - start), 0, -1):
        tail = text[len(text) - length :]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0
