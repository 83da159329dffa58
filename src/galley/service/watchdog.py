"""Checks that an engine with work makes progress. Every method is passed the time, in seconds.

An engine's process sends a frame after each step and, during a long step, a sign of life every second
that reports how long the step has taken so far. So silence means that the process is stopped or starved,
and a step beyond the time limit means that it hangs; a long step within the limit means neither.
"""

from typing import Final, Literal

SIGN_OF_LIFE_SECONDS: Final = 1.0

Verdict = Literal["well", "stalled", "hung"]


class Watchdog:
    """The watchdog of one engine process.

    Args:
        stall_seconds: silence after which the engine counts as stalled.
        step_timeout: silence, or length of a step, after which the engine counts as hung; 0: never.
    """

    def __init__(self, stall_seconds: float, step_timeout: float) -> None:
        self._stall_seconds = stall_seconds
        self._step_timeout = step_timeout
        self._last_frame_at: float | None = None
        self._step_seconds = 0.0

    def report(self, now: float, step_seconds: float = 0.0) -> None:
        """Record a frame; ``step_seconds``: from a sign of life, how long the current step has taken."""
        self._last_frame_at, self._step_seconds = now, step_seconds

    def verdict(self, now: float, *, working: bool) -> Verdict:
        """Return the engine's condition; call this several times a second.

        ``working``: whether the engine has work.
        """
        if not working or self._last_frame_at is None:
            self._last_frame_at = now
        silence = now - self._last_frame_at
        if self._step_timeout and self._step_seconds + silence >= self._step_timeout:
            return "hung"
        return "stalled" if silence >= self._stall_seconds else "well"
