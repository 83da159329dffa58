"""The text of a live stream: the events that give it out, and what conditions the next decoding."""

from collections.abc import Callable

from galley.speech.agreement import separator
from galley.speech.live_events import Delta, Interim, LiveEvent
from galley.speech.options import LiveOptions
from galley.speech.utterance import Turn, Utterance


class LiveText:
    """Gives out final and interim text, and keeps the tokens of final text.

    Args:
        encode: tokenizes a text.
        most: tokens to keep.
    """

    def __init__(self, encode: Callable[[str], list[int]], most: int) -> None:
        self._encode, self._most = encode, most
        self._context: list[int] = []
        """Tokens of final text that condition the next decoding."""
        self._interim = ""
        """The text of the last Interim event."""
        self._events: list[LiveEvent] = []

    def add(self, event: LiveEvent) -> None:
        """Add an event."""
        self._events.append(event)

    def events(self) -> list[LiveEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def add_final(self, turn: Turn, text: str, language: str, *, first: bool) -> None:
        """Add final text to a turn; see :meth:`spaced`."""
        text = self.spaced(turn, text, language, first=first)
        if text:
            turn.text += text
            self.add(Delta(turn.number, text))

    def set_interim(self, turn: Turn, text: str) -> None:
        """Replace the interim text."""
        if text != self._interim:
            self._interim = text
            self.add(Interim(turn.number, text))

    def spaced(self, turn: Turn, text: str, language: str, *, first: bool) -> str:
        """Return ``text`` with the space that it needs after the turn's text.

        Args:
            turn: the turn.
            text: what follows its text.
            language: the spoken language; empty: unknown.
            first: whether no earlier text of the utterance's current audio is final.
        """
        if not turn.text:
            return text.lstrip()
        if not first or not text.strip():
            return text
        return separator(language) + text.lstrip()

    def before(self, utterance: Utterance, options: LiveOptions) -> list[int]:
        """Return the tokens of the text that conditions an utterance's transcript.

        With ``condition_on_previous_text`` that is all earlier text. Otherwise it is the same turn's text
        if only the caller commits turns, and nothing if silence ends turns.
        """
        if options.rules.condition_on_previous_text:
            return self._context
        return [] if options.commit_turns else utterance.turn.context

    def add_context(self, turn: Turn, text: str) -> None:
        """Add final text to what conditions the next decoding."""
        tokens = self._encode(text)
        for context in (self._context, turn.context):
            context += tokens
            del context[: -self._most]
