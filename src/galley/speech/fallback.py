"""Temperature fallback (arXiv:2212.04356, 4.5): transcribe again, hotter, until a transcript is good."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from galley.speech.options import QualityRules
from galley.types import Output

_LOOP: Final = 3
"""A text loops if a phrase repeats this many times in a row, over at least one part in this many."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The transcript of some audio at one temperature.

    Attributes:
        scores: log-probability of each token.
        compression_ratio: compression ratio of the transcript's text, see :func:`compression_ratio`.
        no_speech_prob: probability that the audio contains no speech.
        complete: whether the text ended with an end token, not at a limit.
        loops: whether the text repeats itself in a loop, see :func:`loops`.
    """

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    temperature: float
    compression_ratio: float
    no_speech_prob: float
    complete: bool = True
    loops: bool = True

    @property
    def avg_logprob(self) -> float:
        """Mean log-probability of the tokens; 0 if there are none."""
        return sum(self.scores) / max(1, len(self.scores))

    def is_good(self, rules: QualityRules) -> bool:
        """Return whether no other temperature need be tried."""
        if self.is_silence(rules):
            return True
        least = rules.log_prob_threshold
        repeats = self._compresses(rules) and self.loops
        return not repeats and (least is None or self.avg_logprob >= least)

    def runs_away(self, rules: QualityRules) -> bool:
        """Return whether the decoder repeated itself until it was cut off.

        Each repetition is likelier than the one before, so such a text has a high mean log-probability.
        """
        return not self.complete and self._compresses(rules)

    def _compresses(self, rules: QualityRules) -> bool:
        most = rules.compression_ratio_threshold
        return most is not None and self.compression_ratio > most

    def is_silence(self, rules: QualityRules) -> bool:
        """Return whether the audio is treated as silence and the transcript as hallucinated."""
        limit, least = rules.no_speech_threshold, rules.log_prob_threshold
        likely = least is not None and self.avg_logprob > least
        return limit is not None and self.no_speech_prob > limit and not likely


@dataclass(slots=True)
class Answer:
    """The engine's answer to one request so far."""

    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    no_speech_prob: float = 0.0
    complete: bool = False

    def add(self, output: Output) -> None:
        """Add the next output of the request."""
        said = output.generated
        self.tokens += said.tokens
        self.scores += said.scores or ()
        if said.no_speech_prob is not None:
            self.no_speech_prob = said.no_speech_prob
        self.complete = output.finish_reason == "stop"

    def attempt(self, temperature: float, text: str) -> Attempt:
        """Return the complete answer as an attempt; ``text`` is the text of its tokens."""
        return Attempt(
            tokens=tuple(self.tokens),
            scores=tuple(self.scores),
            temperature=temperature,
            compression_ratio=compression_ratio(text),
            no_speech_prob=self.no_speech_prob,
            complete=self.complete,
            loops=not self.complete or loops(text),
        )


def choose(attempts: Sequence[Attempt], rules: QualityRules) -> Attempt | None:
    """Return the last attempt if it is good, the likeliest if all temperatures were tried, else None.

    If no attempt is good, a text that repeats itself and ends is kept if the others are less likely: the
    speaker may have repeated it.
    """
    if attempts[-1].is_good(rules):
        return attempts[-1]
    if len(attempts) < len(rules.temperatures):
        return None
    return likeliest(attempts, rules)


def likeliest(attempts: Sequence[Attempt], rules: QualityRules) -> Attempt:
    """Return the attempt whose tokens are the likeliest on average; the first of equals.

    One that ran away is returned only if all did.
    """
    ended = [one for one in attempts if not one.runs_away(rules)]
    return max(ended or attempts, key=lambda one: one.avg_logprob)


def compression_ratio(text: str) -> float:
    """Return the zlib compression ratio of a text; high for text that repeats itself, 0 for empty text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def loops(text: str) -> bool:
    """Return whether a phrase occurs three or more times in a row, over at least a third of the text.

    That is the output of a looping decoder. People repeat themselves, too, but rarely in direct succession:
    their text also compresses well, and is correct.
    """
    said = np.array([ord(character) for character in text.lower() if character.isalnum()])
    for period in range(1, len(said) // _LOOP + 1):
        differs = np.flatnonzero(said[period:] != said[:-period])
        ends = np.concatenate([[-1], differs, [len(said) - period]])
        same = int(np.diff(ends).max()) - 1
        if same >= (_LOOP - 1) * period and _LOOP * (same + period) >= len(said):
            return True
    return False
