"""Which requests the engine has, and which one to blame when it dies. Pure bookkeeping, no I/O.

A request may be what killed the engine. So after a death the requests it had go back one at a time: the
next follows when the one on trial has passed, by bringing an Output. An engine that crashes with a request
on trial has died of it twice, and that request alone is given up.
"""

from typing import Final

MAX_KILLED_TRIALS: Final = 3
"""Quarantine that may end with SIGKILL: that is somebody else's doing, unless it happens every time."""


class Quarantine:
    """Every method that returns ids returns those to send to the engine now, in order."""

    def __init__(self) -> None:
        self._unsent: dict[str, None] = {}
        self._sent: dict[str, None] = {}
        self._suspects: dict[str, None] = {}
        self._failed: dict[str, int] = {}
        self._on_trial: str | None = None
        self._engine_ready = False
        self._settling = False

    @property
    def on_trial(self) -> str | None:
        """The suspect that the engine is working on."""
        return self._on_trial

    @property
    def settling(self) -> bool:
        """A suspect was cancelled on trial, and the engine has not yet said that it is gone."""
        return self._settling

    def add(self, request_ids: list[str]) -> list[str]:
        """New requests. They wait while the engine is away or somebody is on trial."""
        self._unsent.update(dict.fromkeys(request_ids))
        return self._next()

    def engine_ready(self) -> list[str]:
        """A new engine takes requests."""
        self._engine_ready = True
        return self._next()

    def passed(self, request_id: str) -> list[str]:
        """The engine brought an Output of the request."""
        self._failed.pop(request_id, None)
        if request_id != self._on_trial:
            return []
        self._on_trial = None
        return self._next()

    def finished(self, request_id: str) -> list[str]:
        """The request has ended by itself."""
        pending = self.passed(request_id)
        self._sent.pop(request_id, None)
        return pending

    def cancelled(self, request_id: str) -> bool:
        """The caller gave the request up. Returns whether the engine has to be told.

        If it was on trial, the engine may already be dying of it: nobody is tried before
        :meth:`settled`, so that nobody else is blamed.
        """
        if request_id == self._on_trial:
            self._on_trial = None
            self._settling = self._engine_ready
        self._failed.pop(request_id, None)
        self._unsent.pop(request_id, None)
        self._suspects.pop(request_id, None)
        was_sent = request_id in self._sent
        self._sent.pop(request_id, None)
        return was_sent

    def settled(self) -> list[str]:
        """The engine lives on after a cancelled trial."""
        self._settling = False
        return self._next()

    def engine_away(self) -> None:
        """Nobody can be sent to the engine any more; why, :meth:`engine_died` will tell."""
        self._engine_ready = False

    def engine_died(self, *, killed: bool) -> str | None:
        """What the engine had is suspect. Returns the request to give up, if it was on trial.

        Args:
            killed: by SIGKILL, so perhaps not by a request at all.
        """
        guilty = self._verdict(killed)
        self._suspects = {**self._sent, **self._suspects}
        self._unsent = {**self._suspects, **self._unsent}
        self._sent = {}
        self._on_trial, self._engine_ready, self._settling = None, False, False
        return guilty

    def _verdict(self, killed: bool) -> str | None:
        request_id = self._on_trial
        if request_id is None:
            return None
        self._failed[request_id] = self._failed.get(request_id, 0) + 1
        if killed and self._failed[request_id] < MAX_KILLED_TRIALS:
            return None
        del self._failed[request_id], self._sent[request_id]
        return request_id

    def _next(self) -> list[str]:
        if not self._engine_ready or self._settling or self._on_trial is not None:
            return []
        if not self._suspects:
            return self._send(list(self._unsent))
        self._on_trial = next(iter(self._suspects))
        del self._suspects[self._on_trial]
        return self._send([self._on_trial])

    def _send(self, request_ids: list[str]) -> list[str]:
        for request_id in request_ids:
            del self._unsent[request_id]
            self._sent[request_id] = None
        return request_ids
