"""Stop strings, which may span several tokens."""

from collections.abc import Sequence


class StopScanner:
    """Passes text through until a stop string is complete, in time linear in the text.

    The stop string that is complete first ends the text; among those complete at the same
    character, the longest one does. So the result does not depend on how the text was divided among
    calls.

    Attributes:
        matched: the stop string that was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._patterns = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str, *, ends: bool = True) -> str:
        """Add text; return the text that certainly precedes any stop string.

        The longest suffix that may still become a stop string is held back.

        Args:
            text: the text that comes next.
            ends: whether stop strings that are complete within ``text`` end it; otherwise they are
                part of it.
        """
        if self.matched is not None or not self._patterns:
            return "" if self.matched is not None else text
        text = self._held + text
        for position in range(len(self._held), len(text)):
            char = text[position]
            # Every pattern must consume the character; the longest match comes first.
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
        """Return the text still held back, which did not become a stop string. No calls may follow."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """Knuth-Morris-Pratt matcher.

    Attributes:
        stop: the string that is searched for.
        matching: length of the longest prefix of ``stop`` that ends the text so far.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matching = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """Add the next character; return whether ``stop`` is now complete.

        No calls may follow a complete match, unless :meth:`go_on` is called.
        """
        while self.matching and self.stop[self.matching] != char:
            self.matching = self._borders[self.matching - 1]
        self.matching += self.stop[self.matching] == char
        return self.matching == len(self.stop)

    def go_on(self) -> None:
        """Continue after a complete match, which may overlap with the next one."""
        self.matching = self._borders[-1]


def _borders(stop: str) -> list[int]:
    """Return, for each prefix of ``stop``, the length of its longest border.

    A border is a proper prefix that is also a suffix.
    """
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
