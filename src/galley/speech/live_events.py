"""Events of a live transcription. Turns count from 0; times are in milliseconds from the stream's start."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech has started; the audio that will be transcribed starts at ``at_ms``, including padding."""

    turn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Speech has ended at ``spoken_to_ms``; this was detected at ``at_ms``."""

    turn: int
    at_ms: int
    spoken_to_ms: int


@dataclass(frozen=True, slots=True)
class Paused:
    """Speech has paused; if the turn ended now, ``text`` would be its transcript.

    ``text`` is empty if the speech is not understood yet. ``at_ms`` is where the silence began. Sent only
    with :attr:`LiveOptions.pauses`.
    """

    turn: int
    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The turn continues after :class:`Paused`: its text is out of date."""

    turn: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A turn's audio is complete; its transcript may still be missing."""

    turn: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More final text: the deltas of a turn, joined, are the turn's transcript."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Interim:
    """Text after the turn's final text that may still change; replaces the previous interim text."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A turn's whole transcript, and the seconds of audio in the turn."""

    turn: int
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine aborted a turn; later turns are still transcribed."""

    turn: int
    message: str


LiveEvent: TypeAlias = (
    SpeechStarted
    | SpeechStopped
    | Paused
    | Resumed
    | Committed
    | Delta
    | Interim
    | Completed
    | Failed
)
