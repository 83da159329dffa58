"""The server's messages about live audio and its transcripts."""

from typing import TYPE_CHECKING, Any, Final

from galley.errors import EngineError
from galley.protocols.common.errors import envelope
from galley.protocols.openai.realtime.schemas import Settings

if TYPE_CHECKING:
    from galley.speech.live_events import LiveEvent

BUFFER: Final = "input_audio_buffer."
_TEXT: Final = "conversation.item.input_audio_transcription."


class LiveMessages:
    """Makes the messages of one connection.

    Attributes:
        turns: turns that are transcribed.
    """

    def __init__(self, connection_id: str) -> None:
        """Begin with no turn. ``connection_id``: part of the items' ids."""
        self._id = connection_id
        self._last_item: str | None = None
        self.turns = 0

    def item_id(self, turn: int) -> str:
        """Return the id of a turn's item."""
        return f"item_{self._id}_{turn}"

    def of(
        self, event: "LiveEvent", settings: Settings, before: str | None
    ) -> list[dict[str, Any]]:
        """Return the messages of an event.

        Args:
            event: an event of the live session.
            settings: the session's.
            before: the last item of a conversation; None: the last turn's.
        """
        from galley.speech import live_events as live

        item: dict[str, Any] = {"item_id": self.item_id(event.turn)}
        part = {**item, "content_index": 0}
        match event:
            case live.SpeechStarted():
                return [{"type": f"{BUFFER}speech_started", "audio_start_ms": event.at_ms, **item}]
            case live.SpeechStopped():
                return [{"type": f"{BUFFER}speech_stopped", "audio_end_ms": event.at_ms, **item}]
            case live.Committed():
                return self._committed(event.turn, settings, before)
            case live.Delta():
                return [{"type": f"{_TEXT}delta", "delta": event.text, **part}]
            case live.Interim() if settings.interim:
                return [{"type": f"{_TEXT}interim", "text": event.text, **part}]
            case live.Interim() | live.Paused() | live.Resumed():
                return []
            case live.Completed():
                self.turns += 1
                usage = {"type": "duration", "seconds": round(event.seconds, 3)}
                return [
                    {"type": f"{_TEXT}completed", "transcript": event.text, "usage": usage, **part}
                ]
            case live.Failed():
                error = envelope(EngineError(event.message))["error"]
                return [{"type": f"{_TEXT}failed", "error": error, **part}]

    def _committed(self, turn: int, settings: Settings, before: str | None) -> list[dict[str, Any]]:
        item_id = self.item_id(turn)
        place = {"previous_item_id": before or self._last_item}
        self._last_item = item_id
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        kinds = ["created"] if settings.flat else ["added", "done"]
        return [
            {"type": f"{BUFFER}committed", "item_id": item_id, **place},
            *({"type": f"conversation.item.{kind}", "item": item, **place} for kind in kinds),
        ]
