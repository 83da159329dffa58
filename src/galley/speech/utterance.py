"""The state of a live stream: turns, their utterances, and decodings of an utterance's audio."""

from dataclasses import dataclass, field
from typing import Literal

from galley.speech.agreement import LocalAgreement
from galley.speech.fallback import Answer, Attempt


@dataclass(slots=True, eq=False)
class Turn:
    """The audio up to one commit, and its transcript.

    Attributes:
        number: counts from 0.
        start, end: positions in the stream, in samples; ``end`` is None until the turn is committed.
        text: the turn's final text so far.
        context: tokens of the text of the turn's utterances before the current one.
        failed: whether the engine aborted one of the turn's requests.
    """

    number: int
    start: int
    end: int | None = None
    text: str = ""
    context: list[int] = field(default_factory=list)
    failed: bool = False


@dataclass(slots=True, eq=False)
class Utterance:
    """Speech in a turn without a long pause. All positions are in samples of the stream.

    During speech, the utterance's audio grows and is decoded repeatedly. Audio that exceeds the longest
    encoder input is cut off at the front, so ``start`` moves.

    Attributes:
        turn: the turn that the utterance belongs to.
        start: start of the audio to decode.
        settle: silence after which its last word counts as complete.
        decoded_to: end of the audio of the last decoding.
        end: end of the utterance's audio; None during speech.
        speech_end: where the detector last detected speech; set together with ``end``.
        agreement: the final and interim text of the audio from ``start`` on.
        partial: all of that text in the last decoding; None if that decoding was not good.
        attempts: attempts of the current head or final decoding, one for each temperature tried.
        cut_at: where to cut an utterance that is too long; None once its head is transcribed.
    """

    turn: Turn
    start: int
    settle: int
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
        return self.partial is not None and self.decoded_to >= self.speech_end + self.settle

    def is_due(self, end: int, silence: int | None, interval: int) -> bool:
        """Return whether the next partial transcript is due.

        During speech one is due every ``interval``; during a silence only one is due, when the last word
        before the silence is complete.

        Args:
            end: end of the audio so far.
            silence: start of the silence at its end; None during speech.
            interval: samples of speech from one transcript to the next.
        """
        if silence is None:
            return end - self.decoded_to >= interval
        settled = silence + self.settle
        return end >= settled and self.decoded_to < settled


@dataclass(slots=True, eq=False)
class Decoding:
    """One request to the engine for an utterance's audio, and the answer.

    Attributes:
        start, end: range of the decoded audio, in samples of the stream.
        purpose: purpose of the request: the spoken "language"; a "partial" transcript while the utterance
            continues; the transcript of the "head" of an utterance that is too long and will be cut at
            ``end``; or the "final" transcript of an utterance that has ended.
        prefix: text that the decoder gets and continues.
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
        """Whether the whole text will be final, so that beam search and further temperatures are used."""
        return self.purpose in ("head", "final")
