"""Warnings about passages of a recording that the model was unsure of."""

import math
from typing import Final

_LISTED: Final = 5
"""Maximum number of passages that a warning lists."""


class LowConfidence:
    """Collects the passages with a low mean token probability.

    Args:
        model: the model's name.
        least: mean token probability below which a passage is doubtful; None: no passage is.
    """

    def __init__(self, model: str, least: float | None) -> None:
        self._model = model
        self._least = least
        self._passages: list[tuple[float, float]] = []
        """(start in seconds, mean token probability) of doubtful passages."""

    def add(self, start: float, avg_logprob: float) -> None:
        """Judge a passage that begins at ``start`` seconds, by the mean log-probability of its tokens."""
        mean = math.exp(avg_logprob)
        if self._least is not None and mean < self._least:
            self._passages.append((start, mean))

    def warnings(self) -> list[str]:
        """Return one warning, or none if no passage was doubtful."""
        if not self._passages:
            return []
        listed = ", ".join(
            f"{start:.1f} s ({mean:.2f})" for start, mean in sorted(self._passages)[:_LISTED]
        )
        more = len(self._passages) - _LISTED
        return [
            f"{self._model} has low confidence from {listed}"
            f"{f' and {more} other places' if more > 0 else ''} on (mean token probability below "
            f"{self._least:g}); names and numbers there may be wrong"
        ]
