"""When the parts of an answer to a spoken turn were ready: Galley's own event ``response.timing``."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any


@dataclass
class TurnTimes:
    """Times on the monotonic clock; None: not yet.

    Attributes:
        spoken_to_ms: where the speech ended in the stream of audio.
        spoken_to: when that audio arrived.
        transcript: when the turn's words were known.
        endpoint: when the turn was found to be over.
        first_words: when the first piece to speak was written.
        first_audio: when its first audio was made.
        silence_ms: how long the silence was to last before the turn ended, as its end was judged.
        sent: whether the event was sent.
    """

    spoken_to_ms: int
    spoken_to: float
    transcript: float | None = None
    endpoint: float | None = None
    first_words: float | None = None
    first_audio: float | None = None
    silence_ms: int | None = None
    sent: bool = False

    def of_another_answer(self) -> "TurnTimes":
        """Return the times of the turn without those of an answer that was dropped."""
        return dataclasses.replace(self, first_words=None, first_audio=None, sent=False)

    def event(self, response_id: str) -> dict[str, Any]:
        """Return the event; the audio is sent right before it."""
        times = {
            "transcript_ms": self.transcript,
            "endpoint_ms": self.endpoint,
            "first_words_ms": self.first_words,
            "first_audio_ms": self.first_audio,
            "sent_ms": time.monotonic(),
        }
        return {
            "type": "response.timing",
            "response_id": response_id,
            "speech_end_ms": self.spoken_to_ms,
            "silence_ms": self.silence_ms,
            **{name: self._since(at) for name, at in times.items()},
        }

    def _since(self, at: float | None) -> int | None:
        return None if at is None else round(1000 * max(0.0, at - self.spoken_to))
