"""Tracks which requests the engine has, and which one to give up when it dies. No I/O.

A request may be what killed the engine. So after a death the requests that the engine had are
quarantined: they are sent to the next engine one at a time, each after the one before has produced an
Output. If an engine dies while it retries a quarantined request, that request has been there at two
deaths, and it alone is given up.
"""

from collections.abc import Collection
from typing import Final

MAX_KILLED_RETRIES: Final = 3
"""Number of retries that may end with SIGKILL, which has an outside cause unless it recurs."""


class Quarantine:
    """The requests that the engine has, and those that wait to be sent to it.

    Every method that returns ids returns those to send to the engine now, in order.
    """

    def __init__(self, failures: dict[str, int] | None = None) -> None:
        """Create it empty; ``failures``: failed retries by request, shared by engines of one model."""
        self._unsent: dict[str, None] = {}
        self._sent: dict[str, None] = {}
        self._quarantined: dict[str, None] = {}
        self._failures: dict[str, int] = {} if failures is None else failures
        self._retried: str | None = None
        self._engine_ready = False
        self._settling = False

    @property
    def retried(self) -> str | None:
        """The quarantined request that the engine is retrying, alone; None if there is none."""
        return self._retried

    @property
    def working(self) -> bool:
        """Whether the engine has requests that it has not finished."""
        return bool(self._sent)

    @property
    def settling(self) -> bool:
        """Whether the retried request was cancelled and the engine has not yet confirmed that."""
        return self._settling

    def add(self, request_ids: list[str]) -> list[str]:
        """Add new requests. They wait while the engine is away or retries a quarantined request."""
        self._unsent.update(dict.fromkeys(request_ids))
        return self._next()

    def add_suspects(self, request_ids: list[str]) -> list[str]:
        """Quarantine requests that another engine had when it died."""
        self._quarantined.update(dict.fromkeys(request_ids))
        return self.add(request_ids)

    def release(self, request_ids: Collection[str]) -> tuple[list[str], list[str], list[str]]:
        """Remove requests; return those that the engine has, and, of all, the suspects and the others.

        A request that is being retried stays under suspicion.
        """
        held = [one for one in (*self._sent, *self._unsent) if one in request_ids]
        suspects = [one for one in held if one == self._retried or one in self._quarantined]
        others = [one for one in held if one not in suspects]
        sent = [one for one in held if one in self._sent]
        for request_id in held:
            for holder in (self._sent, self._unsent, self._quarantined):
                holder.pop(request_id, None)
        if self._retried in suspects:
            self._retried = None
        return sent, suspects, others

    def engine_ready(self) -> list[str]:
        """Record that a new engine accepts requests."""
        self._engine_ready = True
        return self._next()

    def progressed(self, request_id: str) -> list[str]:
        """Record that the engine produced an Output of the request."""
        self._failures.pop(request_id, None)
        if request_id != self._retried:
            return []
        self._retried = None
        return self._next()

    def finished(self, request_id: str) -> list[str]:
        """Record that the request has run to completion."""
        pending = self.progressed(request_id)
        self._sent.pop(request_id, None)
        return pending

    def cancelled(self, request_id: str) -> bool:
        """Remove a request that its caller gave up; return whether the engine must be sent an abort.

        If the request was being retried, the engine may already be dying of it: nothing else is sent before
        :meth:`settled`, so that no other request is blamed.
        """
        if request_id == self._retried:
            self._retried = None
            self._settling = self._engine_ready
        self._failures.pop(request_id, None)
        self._unsent.pop(request_id, None)
        self._quarantined.pop(request_id, None)
        was_sent = request_id in self._sent
        self._sent.pop(request_id, None)
        return was_sent

    def settled(self) -> list[str]:
        """Record that the engine survived the cancellation of a retried request."""
        self._settling = False
        return self._next()

    def engine_away(self) -> None:
        """Record that nothing can be sent to the engine any more; :meth:`engine_died` follows."""
        self._engine_ready = False

    def engine_lost(self) -> None:
        """Record that the engine ended, or cannot be reached, through no fault of its requests."""
        self._unsent = {**self._sent, **self._unsent}
        if self._retried is not None:
            self._quarantined[self._retried] = None
        self._sent = {}
        self._retried, self._engine_ready, self._settling = None, False, False

    def engine_died(self, *, killed: bool) -> str | None:
        """Quarantine the requests that the engine had; return the one to give up, if it was being retried.

        Args:
            killed: whether the engine was ended by SIGKILL, and so perhaps not by a request at all.
        """
        given_up = self._give_up(killed)
        self._quarantined = {**self._sent, **self._quarantined}
        self._unsent = {**self._quarantined, **self._unsent}
        self._sent = {}
        self._retried, self._engine_ready, self._settling = None, False, False
        return given_up

    def _give_up(self, killed: bool) -> str | None:
        request_id = self._retried
        if request_id is None:
            return None
        self._failures[request_id] = self._failures.get(request_id, 0) + 1
        if killed and self._failures[request_id] < MAX_KILLED_RETRIES:
            return None
        del self._failures[request_id], self._sent[request_id]
        return request_id

    def _next(self) -> list[str]:
        if not self._engine_ready or self._settling or self._retried is not None:
            return []
        if not self._quarantined:
            return self._send(list(self._unsent))
        self._retried = next(iter(self._quarantined))
        del self._quarantined[self._retried]
        return self._send([self._retried])

    def _send(self, request_ids: list[str]) -> list[str]:
        for request_id in request_ids:
            del self._unsent[request_id]
            self._sent[request_id] = None
        return request_ids
