"""What a live stream is made of: turns, stretches of speech in them, and looks at these."""

from dataclasses import dataclass, field
from typing import Final, Literal

from galley.speech.agreement import Agreement
from galley.speech.attempts import Attempt
from galley.speech.spans import SAMPLES_PER_MS

SETTLED: Final = 192 * SAMPLES_PER_MS
"""Samples of silence after which the last word is surely whole."""


@dataclass(slots=True, eq=False)
class Turn:
    """What is said until it is committed.

    Attributes:
        number: counts from 0.
        start, end: samples of the stream; ``end`` is None until it is committed.
        text: all of it that is final.
        failed: the engine gave it up.
    """

    number: int
    start: int
    end: int | None = None
    text: str = ""
    failed: bool = False


@dataclass(slots=True, eq=False)
class Stretch:
    """Speech without a long pause: a window that grows.

    Attributes:
        turn: that it belongs to.
        start: first sample of its window.
        seen: end of the last look at it.
        end: last sample of its window; None while it goes on.
        spoken: where its speech ended.
        agreement: the window's text so far.
        last: the whole window's text in the last look, if that was good.
        attempts: at its last look, at one temperature after another.
        cut: where its window is cut, while that is being tried.
    """

    turn: Turn
    start: int
    seen: int
    end: int | None = None
    spoken: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    last: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    cut: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the last look was good and heard all of it, though it could not know so."""
        return self.last is not None and self.seen >= self.spoken + SETTLED


@dataclass(slots=True, eq=False)
class Look:
    """One transcription of a window as it is.

    Attributes:
        start, end: samples of the stream.
        purpose: "language": which one is it; "grow": there is more to come; "head": the window is too long
            and will begin at ``end``; "final": it is complete.
        given: text that the decoder goes on from.
        tokens, scores, no_speech_prob: what the engine said.
        complete: whether the text came to its own end.
    """

    stretch: Stretch
    start: int
    end: int
    purpose: Literal["language", "grow", "head", "final"]
    given: str = ""
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    no_speech_prob: float = 0.0
    complete: bool = False

    @property
    def is_last(self) -> bool:
        """Whether what it says will stay, so that it is worth beams and further temperatures."""
        return self.purpose in ("head", "final")
