"""The client's measurements of one request."""

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    """One request. Times are on the event loop's monotonic clock, in seconds.

    Attributes:
        due: when the schedule wanted it sent; in a closed loop, when its predecessor was answered.
        started: when it was sent; a connection that had to be opened for it is opened after this.
        ended: when its answer was complete, or the error occurred.
        chunks: when each streamed piece of text arrived.
        prompt_tokens, output_tokens: as in the server's usage; without one, pieces of text are counted as
            output tokens.
        cached_tokens: prompt tokens from the server's prefix cache.
        counted: whether the server reported its usage.
        audio_seconds: length of a transcribed recording, as the server reports it.
        error: kind of error, such as ``connect`` or ``http 429``; empty is success.
        detail: the server's message for the error, truncated.
    """

    due: float
    started: float = 0.0
    ended: float = 0.0
    chunks: "array[float]" = field(default_factory=lambda: array("d"))
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    counted: bool = False
    audio_seconds: float = 0.0
    error: str = ""
    detail: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first piece of text; None where nothing was streamed."""
        return self.chunks[0] - self.started if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Mean seconds for each output token after the first; None for answers of fewer than two."""
        if self.output_tokens < 2 or len(self.chunks) < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds from start to end."""
        return self.ended - self.started
