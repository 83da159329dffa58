"""Whether an engine that has work makes progress. Pure: every method is told the time, in seconds.

An engine's process sends a frame after each step, and while a step takes long a sign of life every second
that says for how long. So silence means that the process is stopped or starved, and a step that goes on and
on means that it hangs; a long step by itself means neither.
"""

from typing import Final, Literal

SIGN_OF_LIFE_SECONDS: Final = 1.0

Verdict = Literal["well", "stalled", "hung"]


class Watchdog:
    """Of one engine process.

    Args:
        stall_seconds: silence after which the engine counts as stalled.
        step_timeout: silence, or length of a step, after which it hangs; 0: never.
    """

    def __init__(self, stall_seconds: float, step_timeout: float) -> None:
        self._stall_seconds = stall_seconds
        self._step_timeout = step_timeout
        self._heard: float | None = None
        self._step_seconds = 0.0

    def heard(self, now: float, step_seconds: float = 0.0) -> None:
        """A frame has come; in a sign of life, how long the present step has taken so far."""
        self._heard, self._step_seconds = now, step_seconds

    def verdict(self, now: float, *, working: bool) -> Verdict:
        """``working``: the engine has something to do. To be asked several times a second."""
        if not working or self._heard is None:
            self._heard = now
        silence = now - self._heard
        if self._step_timeout and self._step_seconds + silence >= self._step_timeout:
            return "hung"
        return "stalled" if silence >= self._stall_seconds else "well"
