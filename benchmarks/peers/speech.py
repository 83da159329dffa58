"""What a speech peer does, and the requests through which its process is told to. Standard library only."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

FRAMES: Final = 3000
"""Of a window: 30 seconds."""
EOS: Final = 50257
PROMPT: Final = (50258, 50259, 50359, 50363)
"""Start of transcript, English, transcribe, no timestamps, in every multilingual Whisper up to large-v2."""


class SpeechModel(Protocol):
    """A loaded model. Nothing ends a text early."""

    def encode(self, windows: int) -> list[float]:
        """Seconds for each of so many windows, encoded one after another."""
        ...

    def decode(self, tokens: int, beams: int) -> list[float]:
        """Seconds a token of the text over one window, without its first; none if it cannot."""
        ...

    def transcribe(self, windows: int, tokens: int, beams: int) -> list[float]:
        """Seconds from that many windows to the texts of all, as many at once as it does best."""
        ...


def answer(model: SpeechModel, request: Mapping[str, Any]) -> list[float]:
    """Seconds of ``{"work": "encode", "windows": 3}`` and its like: a method's name and arguments."""
    arguments = dict(request)
    seconds: list[float] = getattr(model, arguments.pop("work"))(**arguments)
    return seconds
