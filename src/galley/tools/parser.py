"""The base of the parsers of all formats: text in as it arrives, events out once they are certain.

A parser is a generator that reads the answer from beginning to end and waits where more text is
needed. The pieces that are fed affect only when it waits, so the events do not depend on how the
text was divided, and each character is examined a bounded number of times.
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
"""Maximum length of a name."""

_CUT: Final = "the answer ends within a call"


class ThinkingMarkers(NamedTuple):
    """The texts before and after a model's thinking."""

    begin: str
    end: str


class Parser:
    """Parses one answer to events. The base class parses answers without calls.

    A format overrides :meth:`_answer`.

    Attributes:
        reasoning_spans: which parts of the text that was fed are thinking, markers included: pairs
            of offsets in characters, in order. The last one may still grow.
        calls: number of complete calls.
        finished: whether no more text is needed, because the only allowed call is complete.
    """

    MARKERS: ClassVar[tuple[str, ...]] = ()
    """The format's markers, which the input must contain even if they are special tokens."""

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
        """Create a parser.

        Args:
            tools: tools that may be called.
            parallel: whether several calls may follow each other; otherwise the answer ends after
                the first.
            thinking: markers of the model's thinking, which may be at the beginning; None: it does
                not think.
            in_thinking: whether the prompt ends within the thinking.
            tokens: markers that are single tokens of the model: their text counts only where that
                token was generated, as in the grammars of answers. The same text spelled with other
                tokens is plain text.
            constrained: whether the answer follows a grammar.
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
        self._marks: deque[int] = deque()  # positions in the whole text of markers that were tokens
        self._buffer = ""
        self._at = 0
        self._position = 0  # position of `_at` in the whole text
        self._ended = False
        self._events: list[Event] = []
        self._spaces: list[str] = []  # after the text, and part of it if more text follows
        self._raw: list[str] = []  # what has been read of the current call
        self._index = 0
        self._started = False
        self._steps = self._run()

    def feed(self, text: str, marks: Iterable[int] = ()) -> list[Event]:
        """Add more of the answer; return the events that have become certain.

        ``marks`` are the positions in the whole text, in order, where the token of a marker begins.
        They may be passed before the text is.
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
        """End the answer and return the remaining events. No calls may follow."""
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
        """Read all that follows the thinking."""
        yield from self._text_until()

    # Reading. What is read counts as part of the current call.

    def _more(self) -> Steps[bool]:
        """Wait for more text; return False if there will be none."""
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
        """Read white space; return the character after it, which is not read, or "" at the end."""
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
        """Read and return the longest of ``literals`` that comes next; None if none does."""
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
        """Read up to one of ``markers``, and the marker.

        Raises:
            NotACall: no marker comes within ``most`` characters.
        """
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
        """Return the text before the first marker, and that marker.

        Without a marker, return the text that cannot be part of one, and None.
        """
        places = [(self._find(marker), marker) for marker in markers]
        found = [(place, -len(marker), marker) for place, marker in places if place >= 0]
        if found:
            place, _, marker = min(found)
            return self._buffer[self._at : place], marker
        keep = 0 if self._ended else _held_back(self._buffer, self._at, markers)
        return self._buffer[self._at : len(self._buffer) - keep], None

    def _find(self, marker: str) -> int:
        """Return the marker's next position in the buffer; -1 if it does not occur."""
        if marker not in self._tokens:
            return self._buffer.find(marker, self._at)
        places = (mark - self._position + self._at for mark in self._marks)
        here = (place for place in places if place >= self._at)
        return next((place for place in here if self._buffer.startswith(marker, place)), -1)

    def _counts(self, marker: str) -> bool:
        """Return whether a marker's text that comes next counts as the marker."""
        return marker not in self._tokens or self._position in self._marks

    # Text and thinking.

    def _text_until(self, *markers: str) -> Steps[str | None]:
        """Emit all text up to one of ``markers``, with which a call begins; return None at the end."""
        while True:
            piece, marker = self._piece(markers)
            self._say(self._read(len(piece)))
            self._raw.clear()
            if marker is not None:
                return self._read(len(marker))
            if not (yield from self._more()):
                return None

    def _say(self, text: str) -> None:
        """Emit text, but keep white space at its end, which is not part of the text before a call."""
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
        """Emit thinking, which began at ``begin``, up to one of ``ends``, which is read and returned."""
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
        """Read calls; what has been read becomes text if it is not a call.

        Args:
            calls: the steps that read the calls.
            quiet: whether text that is not even the beginning of a call needs no warning.
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
        """Begin a call of ``name``. Raise NotACall if the name is invalid."""
        if not TOOL_NAME.fullmatch(name):
            raise NotACall(f"{name[:64]!r} is not a valid tool name")
        self._started = True
        self._events.append(CallStart(self._index, f"call_{uuid.uuid4().hex[:24]}", name))

    def _argue(self, text: str) -> None:
        if text:
            self._events.append(Arguments(self._index, text))

    def _end(self) -> Steps[None]:
        """Complete the current call. If no other may follow, the answer ends here."""
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
        """Read a call that is a JSON object with a name and arguments.

        Args:
            known: whether anything but a call of one of the tools is text.
        """
        call = JsonCall(self._schemas if known else None)
        while not call.complete:
            if self._at == len(self._buffer) and not (yield from self._more()):
                raise NotACall(_CUT)
            try:
                end = call.take(self._buffer, self._at)
            except NotACall:
                self._read(call.read)
                self._forward_call(call)
                raise
            self._read(end - self._at)
            self._forward_call(call)
        yield from self._end()

    def _forward_call(self, call: JsonCall) -> None:
        if call.name is not None:
            if not self._started:
                self._start(call.name)
            self._argue(call.taken())

    def _json_calls(self) -> Steps[None]:
        """Read a JSON list of calls, or one call."""
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
        """Read the arguments of a call that has started: a JSON object."""
        if (yield from self._skip_space()) != "{":
            raise NotACall("the arguments are not a JSON object")
        value = JsonText()
        while not value.complete:
            if self._at == len(self._buffer) and not (yield from self._more()):
                raise NotACall(_CUT)
            at = self._at
            while at < len(self._buffer) and not value.complete:
                if not value.take(self._buffer[at]):
                    self._argue(self._read(at - self._at))
                    raise NotACall("the arguments are not valid JSON")
                at += 1
            self._argue(self._read(at - self._at))


def _held_back(text: str, start: int, markers: Iterable[str]) -> int:
    """Return the length of the longest suffix of ``text`` with which a marker may begin."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text) - start), 0, -1):
        tail = text[len(text) - length :]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0
