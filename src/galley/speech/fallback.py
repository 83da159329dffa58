"""A window's transcripts at one temperature after another, and which of them is taken."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from galley.speech.options import QualityRules


@dataclass(frozen=True, slots=True)
class Attempt:
    """A window's transcript at one temperature; ``scores`` are its tokens' log-probabilities."""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    temperature: float
    compression_ratio: float
    no_speech_prob: float

    @property
    def avg_logprob(self) -> float:
        """Mean of the scores; 0 for nothing."""
        return sum(self.scores) / max(1, len(self.scores))

    def is_good(self, rules: QualityRules) -> bool:
        """Whether no other temperature need be tried."""
        if self.is_silence(rules):
            return True
        most, least = rules.compression_ratio_threshold, rules.log_prob_threshold
        repeats = most is not None and self.compression_ratio > most
        return not repeats and (least is None or self.avg_logprob >= least)

    def is_silence(self, rules: QualityRules) -> bool:
        """Whether what was transcribed is no speech at all."""
        limit, least = rules.no_speech_threshold, rules.log_prob_threshold
        sure = least is not None and self.avg_logprob > least
        return limit is not None and self.no_speech_prob > limit and not sure


def choose(attempts: Sequence[Attempt], rules: QualityRules) -> Attempt | None:
    """The last if it is good, the best of all if there is no other temperature, else None."""
    if attempts[-1].is_good(rules):
        return attempts[-1]
    if len(attempts) < len(rules.temperatures):
        return None
    most = rules.compression_ratio_threshold
    # None is good: one that does not repeat itself, then the likeliest.
    return max(
        attempts,
        key=lambda one: (most is None or one.compression_ratio <= most, one.avg_logprob),
    )


def compression_ratio(text: str) -> float:
    """How much smaller zlib makes it; 0 for nothing."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0
