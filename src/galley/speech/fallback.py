"""Temperature fallback (arXiv:2212.04356, 4.5): transcribe again, hotter, until a transcript is good."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from galley.speech.options import QualityRules
from galley.types import Output

_LOOP: Final = 3
"""So many times a phrase stands in a row, and takes at least one part in so many of a text that loops."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The transcript of some audio at one temperature.

    Attributes:
        scores: log-probability of each token.
        compression_ratio: of the transcript's text, see :func:`compression_ratio`.
        no_speech_prob: probability that the audio holds no speech.
        complete: whether the text ended with an end token, not at a limit.
        loops: whether the text goes round in circles, see :func:`loops`.
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
        """Mean log-probability of the tokens; 0 without tokens."""
        return sum(self.scores) / max(1, len(self.scores))

    def is_good(self, rules: QualityRules) -> bool:
        """Whether no other temperature need be tried."""
        if self.is_silence(rules):
            return True
        most, least = rules.compression_ratio_threshold, rules.log_prob_threshold
        repeats = most is not None and self.compression_ratio > most and self.loops
        return not repeats and (least is None or self.avg_logprob >= least)

    def is_silence(self, rules: QualityRules) -> bool:
        """Whether the audio is taken for silence, and the transcript for invented."""
        limit, least = rules.no_speech_threshold, rules.log_prob_threshold
        likely = least is not None and self.avg_logprob > least
        return limit is not None and self.no_speech_prob > limit and not likely


@dataclass(slots=True)
class Answer:
    """What the engine has answered to one request so far."""

    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    no_speech_prob: float = 0.0
    complete: bool = False

    def add(self, output: Output) -> None:
        """Adds the next output of the request."""
        said = output.generated
        self.tokens += said.tokens
        self.scores += said.scores or ()
        if said.no_speech_prob is not None:
            self.no_speech_prob = said.no_speech_prob
        self.complete = output.finish_reason == "stop"

    def attempt(self, temperature: float, text: str) -> Attempt:
        """The complete answer as an attempt; ``text`` is that of its tokens."""
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
    """The last attempt if it is good, the likeliest one if all temperatures were tried, else None.

    Where none is good, a text that repeats itself stays if the others are less likely: somebody may have
    said so.
    """
    if attempts[-1].is_good(rules):
        return attempts[-1]
    if len(attempts) < len(rules.temperatures):
        return None
    return likeliest(attempts)


def likeliest(attempts: Iterable[Attempt]) -> Attempt:
    """The attempt whose tokens are the likeliest on average; the first of equals."""
    return max(attempts, key=lambda one: one.avg_logprob)


def compression_ratio(text: str) -> float:
    """Bytes of a text for each byte after zlib; high for text that repeats itself, 0 for no text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def loops(text: str) -> bool:
    """Whether a phrase stands three times or more in a row, in a third of the text at least.

    A decoder that is caught in a loop writes so. People say things again, too, but rarely at once: their
    text compresses as well, and is right.
    """
    said = np.array([ord(character) for character in text.lower() if character.isalnum()])
    for period in range(1, len(said) // _LOOP + 1):
        differs = np.flatnonzero(said[period:] != said[:-period])
        ends = np.concatenate([[-1], differs, [len(said) - period]])
        same = int(np.diff(ends).max()) - 1
        if same >= (_LOOP - 1) * period and _LOOP * (same + period) >= len(said):
            return True
    return False
