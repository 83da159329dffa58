"""A stretch of a chunk on its way to text: the whole chunk, or what an earlier stretch left of it."""

from dataclasses import dataclass, field

from galley.speech.chunks import AudioChunk
from galley.speech.fallback import Answer, Attempt
from galley.speech.results import Segment
from galley.speech.tokens import DecodedSegment
from galley.types.audio import EncoderInput


@dataclass(slots=True, eq=False)
class Part:
    """What one encoder input brings.

    Attributes:
        start: where it begins, in seconds of the chunk.
        started: whether its current requests were made.
        attempts: one for each temperature tried so far.
        answers: to its current requests, by their ids.
        waiting: how many of these are not complete.
        best: the attempt that counts; None until one was chosen.
        decoded: the segments of the chosen attempt, with times in the part; none if it is silence.
        segments: the same with times in the recording; None until they, and word times if asked for, are
            known.
    """

    start: float
    encoder_input: EncoderInput
    started: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    waiting: int = 0
    best: Attempt | None = None
    decoded: list[DecodedSegment] = field(default_factory=list)
    segments: list[Segment] | None = None


@dataclass(slots=True, eq=False)
class ChunkJob:
    """A chunk and the state of its transcription.

    Attributes:
        parts: in order; each but the first begins where the text before it ended.
        used_up: no further part will come.
        segments: of all parts, with times in the recording; None until all are known.
    """

    chunk: AudioChunk
    parts: list[Part]
    used_up: bool = False
    segments: list[Segment] | None = None

    def time(self, part: Part, seconds: float, *, end: bool = False) -> float:
        """The time in the recording of one in a part; see :meth:`AudioChunk.recording_time`."""
        return self.chunk.recording_time(part.start + seconds, end=end)

    def settle(self) -> None:
        """Sets ``segments`` if all parts have theirs."""
        if not self.used_up or any(part.segments is None for part in self.parts):
            return
        self.segments = [segment for part in self.parts for segment in part.segments or ()]
