"""State of a live stream: turns, utterances in them, and decodings of an utterance's audio."""

from dataclasses import dataclass, field
from typing import Final, Literal

from galley.speech.agreement import LocalAgreement
from galley.speech.fallback import Answer, Attempt
from galley.speech.segmenter import SAMPLES_PER_MS

SETTLED: Final = 192 * SAMPLES_PER_MS
"""Samples of silence after which an utterance's last word is surely complete."""


@dataclass(slots=True, eq=False)
class Turn:
    """The audio up to one commit, and its transcript.

    Attributes:
        number: counts from 0.
        start, end: positions in the stream, in samples; ``end`` is None until the turn is committed.
        text: the turn's final text so far.
        context: tokens of the text of its utterances before the present one.
        failed: the engine gave up on one of the turn's requests.
    """

    number: int
    start: int
    end: int | None = None
    text: str = ""
    context: list[int] = field(default_factory=list)
    failed: bool = False


@dataclass(slots=True, eq=False)
class Utterance:
    """Speech without a long pause in a turn. All positions are samples of the stream.

    While somebody speaks, the utterance's audio grows and is decoded again and again. What exceeds the
    longest encoder input is cut off at the front, so ``start`` moves.

    Attributes:
        turn: the turn that the utterance belongs to.
        start: where the audio to decode begins.
        decoded_to: where the audio of the last decoding ended.
        end: where the utterance's audio ends; None while somebody speaks.
        speech_end: where the detector last heard speech; set together with ``end``.
        agreement: the text of the audio from ``start`` on, final and interim.
        partial: all of that text in the last decoding; None if that decoding was not good.
        attempts: of the current head or final decoding, one for each temperature tried.
        cut_at: where an utterance that is too long is to be cut, until its head is transcribed.
    """

    turn: Turn
    start: int
    decoded_to: int
    end: int | None = None
    speech_end: int = 0
    agreement: LocalAgreement = field(default_factory=LocalAgreement)
    partial: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    cut_at: int | None = None

    @property
    def settled(self) -> bool:
        """Whether ``partial`` covers all of the speech, so that a final decoding would add nothing."""
        return self.partial is not None and self.decoded_to >= self.speech_end + SETTLED


@dataclass(slots=True, eq=False)
class Decoding:
    """One request to the engine over an utterance's audio, and the answer.

    Attributes:
        start, end: the decoded audio, in samples of the stream.
        purpose: what the request is for: the spoken "language"; a "partial" transcript while the utterance
            goes on; the transcript of the "head" of an utterance that is too long and will be cut at
            ``end``; or the "final" transcript of an utterance that has ended.
        prefix: text that the decoder is given and continues.
        answer: the engine's answer so far.
        complete: whether the text ended with an end token, not at a limit.
    """

    utterance: Utterance
    start: int
    end: int
    purpose: Literal["language", "partial", "head", "final"]
    prefix: str = ""
    answer: Answer = field(default_factory=Answer)
    complete: bool = False

    @property
    def is_final(self) -> bool:
        """Whether the text will be final as a whole, so that beams and further temperatures are used."""
        return self.purpose in ("head", "final")
