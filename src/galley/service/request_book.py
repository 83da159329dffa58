"""The unfinished requests of a model: their answers so far, their deadlines, and who ends them.

Each request's prompt and the tokens delivered so far live here, outside of the engine's process, so that a
new engine can go on with them. ``admission.py`` decides what is taken, ``quarantine.py`` what a new engine
gets when one has died.
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
    """All requests of a model that have no end yet. Of one event loop."""

    def __init__(self, admission: Admission, send: Callable[[Submit | Abort], int]) -> None:
        """
        Args:
            admission: what may be taken.
            send: sends the engine's process a frame; returns how many it has been sent. Without a process
                it does nothing and returns 0.
        """
        self._admission = admission
        self._send = send
        self._unread = UnreadBudget()
        self._unfinished: dict[str, Unfinished] = {}
        self._settled_at = 0
        self.quarantine = Quarantine()

    def __len__(self) -> int:
        """Unfinished sequences."""
        return len(self._unfinished)

    def check_place(self, share: Share, deadline: float) -> None:
        """Raise as :meth:`take` where that is certain before a tenant's request is known."""
        now = time.monotonic()
        _check_deadline(deadline, now)
        self._admission.check_place(share, now=now)

    def check_early(self, share: Share, priority: int, deadline: float) -> None:
        """Raise as :meth:`take` where that is certain for any request of the tenant with this priority."""
        now = time.monotonic()
        _check_deadline(deadline, now)
        self._admission.check_early(share, priority, deadline, now=now)

    def check(self, requests: Sequence[EngineRequest], deadline: float) -> None:
        """Raise as :meth:`take`, and begin none."""
        now = time.monotonic()
        _check_deadline(deadline, now)
        self._admission.check(requests, deadline, now=now)

    def room(self, share: Share) -> int:
        """How many sequences the tenant may add at once."""
        return self._admission.room(share, now=time.monotonic())

    def take(self, requests: Sequence[EngineRequest], deadline: float) -> list[OutputStream]:
        """Begin all of them or none.

        Args:
            requests: of one caller.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded, and the engine forgets them.

        Raises:
            QueueFull: too many are waiting, or the answers are expected after the deadline.
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
        """Note how far the engine is; ``working``: it is ready."""
        self._admission.observe(stats, working=working, now=time.monotonic())

    def deliver(self, output: Output) -> None:
        """Hand on what the engine computed; nothing if nobody waits for it any more."""
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
        """The engine has read so many frames: what waited for the end of a cancelled request may go."""
        if self.quarantine.settling and frames_seen >= self._settled_at:
            self._submit(self.quarantine.settled())

    def engine_ready(self) -> None:
        """A new engine: it gets what the last one had, each request with the tokens that were delivered."""
        for unfinished in self._unfinished.values():
            unfinished.resumed = True
        self._submit(self.quarantine.engine_ready())

    def engine_died(self, *, killed: bool) -> None:
        """The engine died with the requests it had; one of them may have to be given up."""
        given_up = self.quarantine.engine_died(killed=killed)
        if given_up is not None:
            log.error("the engine dies of request %s; giving it up", given_up)
            message = "the engine died again and again while it worked on this request"
            self._give_up(given_up, "error", message)

    def end_all(self, reason: Literal["abort", "error"], error: str | None) -> None:
        """End each with this reason; no engine is told."""
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
        """Take a request off the books, whatever ended it."""
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
        when = "before it was complete" if unfinished.answered else "while it waited"
        unfinished.unread.fail(DeadlineExceeded(f"The request's deadline passed {when}"))

    def _submit(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            sent = self._send(Submit(self._unfinished[request_id].resumption()))
            assert sent, "the quarantine gives requests to an engine alone"

    def _give_up(
        self, request_id: str, reason: Literal["abort", "error"], error: str | None
    ) -> None:
        unfinished = self._end(request_id)
        assert unfinished is not None
        unfinished.unread.put(Output(request_id=request_id, finish_reason=reason, error=error))


def _check_deadline(deadline: float, now: float) -> None:
    if deadline <= now:
        raise DeadlineExceeded("The request's deadline passed before it reached the queue")
