"""What a caller may say about how speech is found, windowed and judged. Validated at construction."""

import math
from dataclasses import dataclass

from galley.errors import RequestError


def _between(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {value!r}", param=name)
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(
            f"{name} must be between {low:g} and {high:g}, got {value!r}", param=name
        )


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """Where speech begins and ends, by the detector's probability of each 32 ms.

    Attributes:
        threshold: speech begins at this probability.
        neg_threshold: it ends below this one; default: ``threshold`` - 0.15.
        min_speech_ms: shorter speech is taken for noise.
        min_silence_ms: a shorter pause does not end speech.
        pad_ms: kept before and after speech, at most half of ``min_silence_ms``.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_ms: int = 100
    min_silence_ms: int = 500
    pad_ms: int = 250

    def __post_init__(self) -> None:
        _between("threshold", self.threshold, 0.0, 1.0)
        if self.neg_threshold is not None:
            _between("neg_threshold", self.neg_threshold, 0.0, self.threshold)
        for name in ("min_speech_ms", "min_silence_ms", "pad_ms"):
            _between(name, getattr(self, name), 0, 60_000)
        if 2 * self.pad_ms > self.min_silence_ms:
            raise RequestError(
                f"pad_ms ({self.pad_ms}) must be at most half of min_silence_ms "
                f"({self.min_silence_ms}): the padding of two neighbours must not meet",
                param="pad_ms",
            )

    @property
    def silence_below(self) -> float:
        """``neg_threshold``, or its default."""
        if self.neg_threshold is not None:
            return self.neg_threshold
        return max(self.threshold - 0.15, 0.01)
