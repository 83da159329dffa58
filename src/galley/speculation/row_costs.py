"""What a step of so many rows takes: measured at warm-up, corrected by the steps that follow."""

from collections.abc import Mapping
from typing import Final

_PART: Final = 0.05
"""How much one step changes what is known of real steps."""

_FORGETTING: Final = 0.005
"""How much a step without guesses does, of what is held against guesses."""


class RowCosts:
    """Seconds of steps that decode, by rows.

    The measurement is of the model alone, with short contexts and nothing else on the machine. Two things
    are learned of real steps, apart for each magnitude of the number of sequences: what a step without
    guesses takes beyond it (which a step with guesses takes, too), and how many times longer than that
    makes one expect a step with guesses takes.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        """``measured``: rows -> seconds, at least of two numbers of rows, 1 among them."""
        points = sorted(measured.items())
        assert len(points) > 1
        assert points[0][0] == 1
        self._table = [0.0, points[0][1]]
        """By rows, up to the most that were measured."""
        for rows, seconds in points[1:]:
            first = len(self._table) - 1
            # More rows take no less; what a measurement says else is noise.
            rise = max(0.0, seconds - self._table[first]) / (rows - first)
            self._table += [self._table[first] + rise * i for i in range(1, rows - first + 1)]
        self._rise = rise
        self._overhead: dict[int, float] = {}
        self._factor: dict[int, float] = {}

    def seconds(self, rows: int) -> float:
        """As measured; between two measurements, and beyond the last, by a line through two."""
        table = self._table
        if rows < len(table):
            return table[rows]
        return table[-1] + self._rise * (rows + 1 - len(table))

    def plain(self, sequences: int) -> float:
        """Of a step that decodes so many sequences, without guesses."""
        measured = self.seconds(sequences)
        return max(measured + self._overhead.get(sequences.bit_length(), 0.0), measured / 8)

    def guessed(self, sequences: int, rows: int, guesses: int) -> float:
        """Of the same with so many guesses, in a step that has ``rows`` without them.

        What else there is in the step, such as prompts, would be computed anyway and does not count.
        """
        added = self.seconds(rows + guesses) - self.seconds(rows)
        return self.factor(sequences) * (self.plain(sequences) + added)

    def factor(self, sequences: int) -> float:
        """How many times longer than expected steps with guesses take."""
        return self._factor.get(sequences.bit_length(), 1.0)

    def observe(self, sequences: int, guesses: int, seconds: float) -> None:
        """A step that did nothing but decode took so long."""
        magnitude = sequences.bit_length()
        plain, factor = self.plain(sequences), self.factor(sequences)
        if not guesses:
            # A single step that was held up says little.
            beyond = min(seconds, 2 * plain) - self.seconds(sequences)
            before = self._overhead.get(magnitude, 0.0)
            self._overhead[magnitude] = before + _PART * (beyond - before)
            self._factor[magnitude] = factor + _FORGETTING * (1.0 - factor)
            return
        expected = plain + self.seconds(sequences + guesses) - self.seconds(sequences)
        self._factor[magnitude] = factor + _PART * (min(seconds / expected, 2 * factor) - factor)
