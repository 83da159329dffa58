"""The parts of a chunk that are transcribed: the whole chunk, then the rest that a part leaves over."""

from dataclasses import dataclass, field

from galley.speech.chunks import AudioChunk
from galley.speech.fallback import Answer, Attempt
from galley.speech.results import Segment, Word
from galley.speech.tokens import DecodedSegment
from galley.speech.words import moved
from galley.types.audio import EncoderInput


@dataclass(slots=True, eq=False)
class Part:
    """One encoder input and the state of its transcription.

    Attributes:
        start: start of the part, in seconds of the chunk.
        started: whether the current requests were created.
        attempts: one attempt for each temperature tried so far.
        answers: answers to the current requests, by request id.
        waiting: number of incomplete answers.
        best: the chosen attempt; None until one is chosen.
        decoded: the segments of the chosen attempt, with times in the part; empty if it is silence.
        rest: time in the chunk from which speech is left to transcribe; None if none is left.
        segments: the same segments with times in the recording; None until these, and word times if
            requested, are known.
    """

    start: float
    encoder_input: EncoderInput
    started: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    waiting: int = 0
    best: Attempt | None = None
    decoded: list[DecodedSegment] = field(default_factory=list)
    rest: float | None = None
    segments: list[Segment] | None = None


@dataclass(slots=True, eq=False)
class ChunkJob:
    """A chunk and the state of its transcription.

    Attributes:
        parts: the parts in order; each but the first begins where the text of the previous one ended.
        used_up: whether no further part will be added.
        language: language detected in the chunk; None until then, and if it was not detected here.
        speech_end: end of the last word found so far, in seconds of the chunk; 0 if there is none.
        segments: the segments of all parts, with times in the recording; None until all are known.
    """

    chunk: AudioChunk
    parts: list[Part]
    used_up: bool = False
    language: str | None = None
    speech_end: float = 0.0
    segments: list[Segment] | None = None

    def time(self, part: Part, seconds: float, *, end: bool = False) -> float:
        """Return the time in the recording of a time in a part; see :meth:`AudioChunk.recording_time`."""
        return self.chunk.recording_time(part.start + seconds, end=end)

    def place(self, part: Part, word: Word) -> Word:
        """Return a word with times in a part as one with times in the recording."""
        times = self.chunk.recording_times(part.start + word.start, part.start + word.end)
        return moved(word, *times)

    def settle(self) -> None:
        """Set ``segments`` if all parts have theirs."""
        if not self.used_up or any(part.segments is None for part in self.parts):
            return
        self.segments = [segment for part in self.parts for segment in part.segments or ()]
