"""What a live transcription tells. Turns count from 0; times are milliseconds of the stream."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Somebody speaks; ``at_ms`` is the beginning of what will be heard, padding included."""

    turn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Nobody speaks any more, as was found at ``at_ms``."""

    turn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A turn's audio is complete."""

    turn: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is final: all of a turn's, joined, are its transcript."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Interim:
    """What would come next as things are; replaces what was said so before. Nothing, if empty."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A turn's transcript, and the seconds of audio that it had."""

    turn: int
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine gave up on a turn; the next one is not hurt."""

    turn: int
    message: str


LiveEvent: TypeAlias = (
    SpeechStarted | SpeechStopped | Committed | Delta | Interim | Completed | Failed
)
