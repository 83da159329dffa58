"""Stop strings, which may stretch over several tokens."""

from collections.abc import Sequence


class StopScanner:
    """Passes text on until a stop string is complete, in time linear in the text.

    The stop string that is complete first ends the text; among those complete at the same character, the
    longest. So the result does not depend on how the text was divided among calls.

    Attributes:
        matched: the stop string that was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._patterns = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str, *, ends: bool = True) -> str:
        """Takes more text; returns what certainly precedes any stop string.

        The longest suffix that may still become a stop string is held back.

        Args:
            text: what comes next.
            ends: stop strings that are complete within ``text`` end it; else they are part of it.
        """
        if self.matched is not None or not self._patterns:
            return "" if self.matched is not None else text
        text = self._held + text
        for position in range(len(self._held), len(text)):
            char = text[position]
            # Every pattern must see the character; the longest comes first.
            complete = [pattern for pattern in self._patterns if pattern.advance(char)]
            if complete and not ends:
                for pattern in complete:
                    pattern.go_on()
            elif complete:
                self.matched = complete[0].stop
                self._held = ""
                return text[: position + 1 - len(self.matched)]
        safe = len(text) - max(pattern.matching for pattern in self._patterns)
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """The text still held back, which did not become a stop string. No calls may follow."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """Knuth-Morris-Pratt matcher: ``matching`` first characters of ``stop`` end the text so far."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matching = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """Takes the next character; whether ``stop`` is now complete, after which no calls may follow."""
        while self.matching and self.stop[self.matching] != char:
            self.matching = self._borders[self.matching - 1]
        self.matching += self.stop[self.matching] == char
        return self.matching == len(self.stop)

    def go_on(self) -> None:
        """Calls may follow though ``stop`` is complete: it may begin anew within itself."""
        self.matching = self._borders[-1]


def _borders(stop: str) -> list[int]:
    """For each prefix of ``stop``: the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
