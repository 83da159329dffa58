"""The time of a step by number of rows: measured at warm-up, corrected by the steps that follow."""

from collections.abc import Mapping
from typing import Final

_PART: Final = 0.05
"""Weight of one step in the average of measured steps."""

_FORGETTING: Final = 0.005
"""Rate at which a step without draft tokens reduces the penalty on draft tokens."""


class RowCosts:
    """Seconds of decoding steps, by rows.

    The measurement covers only the model, with short contexts on an otherwise idle machine. Two values
    are learned from real steps, separately for each magnitude of the number of sequences: the time that a
    step without draft tokens takes in addition to the measurement (a step with draft tokens takes it,
    too), and the factor by which a step with draft tokens exceeds its expected time.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        """Create the costs from ``measured``: rows -> seconds, at least two entries including 1 row."""
        points = sorted(measured.items())
        assert len(points) > 1
        assert points[0][0] == 1
        self._table = [0.0, points[0][1]]
        """Seconds by rows, up to the largest number that was measured."""
        for rows, seconds in points[1:]:
            first = len(self._table) - 1
            # More rows never take less time; measurements that contradict this are noise.
            rise = max(0.0, seconds - self._table[first]) / (rows - first)
            self._table += [self._table[first] + rise * i for i in range(1, rows - first + 1)]
        self._rise = rise
        self._overhead: dict[int, float] = {}
        self._factor: dict[int, float] = {}

    def seconds(self, rows: int) -> float:
        """Return the measured seconds, linearly interpolated, and extrapolated beyond the last one."""
        table = self._table
        if rows < len(table):
            return table[rows]
        return table[-1] + self._rise * (rows + 1 - len(table))

    def plain(self, sequences: int) -> float:
        """Return the seconds of a step that decodes ``sequences`` sequences, without draft tokens."""
        measured = self.seconds(sequences)
        return max(measured + self._overhead.get(sequences.bit_length(), 0.0), measured / 8)

    def with_drafts(self, sequences: int, rows: int, draft_tokens: int) -> float:
        """Return the seconds of the same step with draft tokens, if it has ``rows`` rows without them.

        Other rows in the step, such as those of prompts, would be computed anyway and do not count.
        """
        added = self.seconds(rows + draft_tokens) - self.seconds(rows)
        return self.factor(sequences) * (self.plain(sequences) + added)

    def factor(self, sequences: int) -> float:
        """Return the factor by which steps with draft tokens exceed their expected time."""
        return self._factor.get(sequences.bit_length(), 1.0)

    def observe(self, sequences: int, draft_tokens: int, seconds: float) -> None:
        """Record the seconds of a step that only decoded."""
        magnitude = sequences.bit_length()
        plain, factor = self.plain(sequences), self.factor(sequences)
        if not draft_tokens:
            # A single delayed step carries little information.
            beyond = min(seconds, 2 * plain) - self.seconds(sequences)
            before = self._overhead.get(magnitude, 0.0)
            self._overhead[magnitude] = before + _PART * (beyond - before)
            self._factor[magnitude] = factor + _FORGETTING * (1.0 - factor)
            return
        expected = plain + self.seconds(sequences + draft_tokens) - self.seconds(sequences)
        self._factor[magnitude] = factor + _PART * (min(seconds / expected, 2 * factor) - factor)
