"""The unfinished requests of a model: their answers so far, their deadlines, and how they end.

Each request's prompt and the tokens delivered so far are kept here, outside of the engine's process, so
that a new engine can continue them. ``admission.py`` decides which requests are accepted, and
``quarantine.py`` which ones a new engine is given after another has died.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

from galley.errors import DeadlineExceeded
from galley.service.admission import Admission
from galley.service.frames import Abort, Submit
from galley.service.quarantine import Quarantine
from galley.service.streams import OutputStream, Unfinished
from galley.service.turns import Share
from galley.service.unread import Unread, UnreadBudget
from galley.types import EngineRequest, Output
from galley.types.model_info import EngineStats

log = logging.getLogger("galley.service")


class RequestBook:
    """All unfinished requests of a model. For use in one event loop."""

    def __init__(self, admission: Admission, send: Callable[[Submit | Abort], int]) -> None:
        """Create an empty book.

        Args:
            admission: decides which requests are accepted.
            send: sends a frame to the engine's process and returns how many have been sent to it. Without
                a process it does nothing and returns 0.
        """
        self._admission = admission
        self._send = send
        self._unread = UnreadBudget()
        self._unfinished: dict[str, Unfinished] = {}
        self._settled_at = 0
        self.quarantine = Quarantine()

    def __len__(self) -> int:
        """Return the number of unfinished sequences."""
        return len(self._unfinished)

    def check_place(self, share: Share, deadline: float) -> None:
        """Raise the errors of :meth:`take` that are certain before a tenant's request is known."""
        now = time.monotonic()
        _check_deadline(deadline, now)
        self._admission.check_place(share, now=now)

    def check_early(self, share: Share, priority: int, deadline: float) -> None:
        """Raise the errors of :meth:`take` that any request of the tenant with this priority would meet."""
        now = time.monotonic()
        _check_deadline(deadline, now)
        self._admission.check_early(share, priority, deadline, now=now)

    def check(self, requests: Sequence[EngineRequest], deadline: float) -> None:
        """Raise the errors of :meth:`take`, without starting a request."""
        now = time.monotonic()
        _check_deadline(deadline, now)
        self._admission.check(requests, deadline, now=now)

    def room(self, share: Share) -> int:
        """Return how many sequences the tenant may add at once."""
        return self._admission.room(share, now=time.monotonic())

    def take(self, requests: Sequence[EngineRequest], deadline: float) -> list[OutputStream]:
        """Start all of the requests or none.

        Args:
            requests: the requests of one caller.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded, and the engine drops their requests.

        Raises:
            QueueFull: too many sequences are waiting, or the answers are expected after the deadline.
            DeadlineExceeded: the deadline has passed.
        """
        self.check(requests, deadline)
        now = time.monotonic()
        streams = []
        for request in requests:
            unfinished = self._unfinished[request.id] = self._begin(request, deadline, now)
            streams.append(OutputStream(unfinished, self._abort))
        self._submit(self.quarantine.add([request.id for request in requests]))
        return streams

    def observe(self, stats: EngineStats, *, working: bool) -> None:
        """Record the engine's statistics; ``working``: whether it is ready."""
        self._admission.observe(stats, working=working, now=time.monotonic())

    def deliver(self, output: Output) -> None:
        """Deliver an Output to its reader; ignore it if its request has ended."""
        unfinished = self._unfinished.get(output.request_id)
        if unfinished is None:
            return
        self._admission.progress(unfinished.claim, len(output.tokens), now=time.monotonic())
        unfinished.take(output)
        if output.finish_reason is None:
            self._submit(self.quarantine.progressed(output.request_id))
            return
        self._end(output.request_id, finished=True)
        self._submit(self.quarantine.finished(output.request_id))

    def stepped(self, frames_seen: int) -> None:
        """Record how many frames the engine has read; send what waited for a cancellation to be read."""
        if self.quarantine.settling and frames_seen >= self._settled_at:
            self._submit(self.quarantine.settled())

    def engine_ready(self) -> None:
        """Send a new engine the unfinished requests, each with the tokens delivered so far."""
        for unfinished in self._unfinished.values():
            unfinished.resumed = True
        self._submit(self.quarantine.engine_ready())

    def engine_died(self, *, killed: bool) -> None:
        """Record that the engine died; give up the request that it died of, if that is known."""
        given_up = self.quarantine.engine_died(killed=killed)
        if given_up is not None:
            log.error("giving up request %s, which crashes the engine", given_up)
            message = "the engine crashed repeatedly while processing this request"
            self._give_up(given_up, "error", message)

    def end_all(self, reason: Literal["abort", "error"], error: str | None) -> None:
        """End every request with this reason, without sending anything to the engine."""
        for request_id in list(self._unfinished):
            self._give_up(request_id, reason, error)

    def _begin(self, request: EngineRequest, deadline: float, now: float) -> Unfinished:
        unread = Unread(self._unread, on_cut=lambda: self._abort(request.id))
        claim = self._admission.add(request, now=now)
        timer = None
        if deadline != math.inf:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(deadline - now, self._expire, request.id)
        return Unfinished(request, unread, claim, now, timer)

    def _end(self, request_id: str, *, finished: bool = False) -> Unfinished | None:
        """Remove a request from the book, whatever ended it."""
        unfinished = self._unfinished.pop(request_id, None)
        if unfinished is not None:
            if unfinished.timer is not None:
                unfinished.timer.cancel()
            self._admission.remove(unfinished.claim, finished=finished, now=time.monotonic())
        return unfinished

    def _abort(self, request_id: str) -> None:
        if self._end(request_id) and self.quarantine.cancelled(request_id):
            self._settled_at = self._send(Abort([request_id]))

    def _expire(self, request_id: str) -> None:
        unfinished = self._unfinished[request_id]
        self._abort(request_id)
        when = "before it was complete" if unfinished.answered else "in the queue"
        unfinished.unread.fail(DeadlineExceeded(f"The request's deadline passed {when}"))

    def _submit(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            sent = self._send(Submit(self._unfinished[request_id].resumption()))
            assert sent, "requests in quarantine are sent one at a time"

    def _give_up(
        self, request_id: str, reason: Literal["abort", "error"], error: str | None
    ) -> None:
        unfinished = self._end(request_id)
        assert unfinished is not None
        unfinished.unread.put(Output(request_id=request_id, finish_reason=reason, error=error))


def _check_deadline(deadline: float, now: float) -> None:
    if deadline <= now:
        raise DeadlineExceeded("The request's deadline passed before it reached the queue")
