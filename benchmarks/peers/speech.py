"""What a speech peer does, and the requests that its process accepts. Standard library only."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

FRAMES: Final = 3000
"""Of a window: 30 seconds."""
EOS: Final = 50257
PROMPT: Final = (50258, 50259, 50359, 50363)
"""Start of transcript, English, transcribe, no timestamps, in every multilingual Whisper up to large-v2."""


class SpeechModel(Protocol):
    """A loaded model. No text ends early."""

    def encode(self, windows: int) -> list[float]:
        """Return the seconds for each of ``count`` windows, encoded one after another."""
        ...

    def decode(self, tokens: int, beams: int) -> list[float]:
        """Return the seconds per token of the text over one window, but the first; [] if unsupported."""
        ...

    def transcribe(self, windows: int, tokens: int, beams: int) -> list[float]:
        """Return the seconds from that many windows to all texts, at the batch size that suits it best."""
        ...


def answer(model: SpeechModel, request: Mapping[str, Any]) -> list[float]:
    """Return the seconds for ``{"work": "encode", "windows": 3}`` etc.: a method's name and arguments."""
    arguments = dict(request)
    seconds: list[float] = getattr(model, arguments.pop("work"))(**arguments)
    return seconds
