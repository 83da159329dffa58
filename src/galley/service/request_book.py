"""The unfinished requests of a model: their answers so far, their deadlines, and how they end.

Each request's prompt and the tokens delivered so far are kept here, outside of the engines' processes, so
that any engine can continue them. ``admission.py`` decides which requests are accepted, and
``quarantine.py`` which ones an engine is given after another has died.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from galley.errors import DeadlineExceeded, same_id
from galley.service.admission import Admission
from galley.service.replica import Replica
from galley.service.streams import OutputStream, Unfinished
from galley.service.turns import Share
from galley.service.unread import Unread, UnreadBudget
from galley.types import EngineRequest, Output
from galley.types.engine_stats import EngineStats
from galley.types.transfers import KVPeer

log = logging.getLogger("galley.service")

Prefill: TypeAlias = Callable[[], Coroutine[None, None, KVPeer | None]]
"""Computes a request's prompt elsewhere, and returns where its blocks are; None: it could not, in time."""


class RequestBook:
    """All unfinished requests of a model. For use in one event loop."""

    def __init__(
        self,
        admission: Admission,
        choose: Callable[[EngineRequest, str | None], tuple[Replica, int] | None],
        spare: Callable[[], Replica],
        on_finished: Callable[[Unfinished, Output], None] = lambda unfinished, output: None,
    ) -> None:
        """Create an empty book.

        Args:
            admission: decides which requests are accepted.
            choose: returns the ready replica for a request, given the version that has to continue it, and
                the tokens of the prompt that it is expected to have cached; None: there is none.
            spare: returns a replica where a request can wait until one is ready.
            on_finished: called with each request that an engine has finished, and its last Output.
        """
        self._admission = admission
        self._choose = choose
        self._spare = spare
        self._on_finished = on_finished
        self._unread = UnreadBudget()
        self._unfinished: dict[str, Unfinished] = {}

    def __len__(self) -> int:
        """Return the number of unfinished sequences."""
        return len(self._unfinished)

    def __iter__(self) -> Iterator[Unfinished]:
        """Return the unfinished sequences."""
        return iter(self._unfinished.values())

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

    @property
    def backlog(self) -> float:
        """The seconds until a newcomer would be scheduled; 0 also if that is unknown."""
        return self._admission.backlog(now=time.monotonic())

    def room(self, share: Share) -> int:
        """Return how many sequences the tenant may add at once."""
        return self._admission.room(share, now=time.monotonic())

    def take(
        self,
        requests: Sequence[EngineRequest],
        deadline: float,
        prefill: Mapping[str, Prefill] = MappingProxyType({}),
    ) -> list[OutputStream]:
        """Start all of the requests or none.

        Args:
            requests: the requests of one caller.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded, and the engine drops their requests.
            prefill: id of a request -> computes its prompt elsewhere.

        Raises:
            QueueFull: too many sequences are waiting, or the answers are expected after the deadline.
            DeadlineExceeded: the deadline has passed.
            Conflict: two unfinished requests would have the same id.
        """
        self.check(requests, deadline)
        self._check_ids(requests)
        now = time.monotonic()
        streams = []
        for request in requests:
            unfinished = self._unfinished[request.id] = self._begin(request, deadline, now)
            streams.append(OutputStream(unfinished, self._abort))
        for request in requests:
            unfinished = self._unfinished[request.id]
            if request.id in prefill:
                sending = self._send_after(prefill[request.id], request.id)
                unfinished.prefill = asyncio.create_task(sending)
            else:
                unfinished.replica.requests.add([request.id])
        return streams

    async def _send_after(self, prefill: Prefill, request_id: str) -> None:
        """Send a request to its replica, which may be another one by now, once its prompt is computed.

        Cancelled when the request ends before that.
        """
        try:
            peer = await prefill()
        except Exception:
            # Nobody awaits this task: without its replica, the request would never end.
            log.exception("a prompt was not computed elsewhere")
            peer = None
        unfinished = self._unfinished[request_id]
        unfinished.prefill = None
        if peer is not None:
            unfinished.request = msgspec.structs.replace(unfinished.request, kv_from=peer)
            # Fetching blocks is not computing, so other requests may still be sent to it.
            cached = max(unfinished.claim.cached, peer.tokens)
            self._admission.give(unfinished.claim, unfinished.replica.name, cached)
        unfinished.replica.requests.add([request_id])

    def _check_ids(self, requests: Sequence[EngineRequest]) -> None:
        taken = set[str]()
        for request in requests:
            if request.id in self._unfinished or request.id in taken:
                raise same_id(request.id)
            taken.add(request.id)

    def observe(self, stats: EngineStats, *, working: bool) -> None:
        """Record the engine's statistics; ``working``: whether it is ready."""
        self._admission.observe(stats, working=working, now=time.monotonic())

    def deliver(self, replica: Replica, output: Output) -> int:
        """Deliver an Output to its reader, unless its request has ended or another replica has it now.

        Returns:
            The tokens of prompt and output that the replica computed for it.
        """
        unfinished = self._unfinished.get(output.request_id)
        if unfinished is None or unfinished.replica is not replica:
            return 0
        tokens, now = output.tokens, replica.last_frame_at
        computed = self._admission.progress(
            unfinished.claim, len(tokens), output.cached_tokens, now=now
        )
        unfinished.take(output, now)
        if output.finish_reason is None:
            replica.requests.progressed(output.request_id)
            return computed
        self._end(output.request_id, finished=True)
        self._on_finished(unfinished, output)
        replica.requests.finished(output.request_id)
        return computed

    def replica_of(self, request_id: str) -> Replica:
        """Return the replica that has a request."""
        return self._unfinished[request_id].replica

    def resumption(self, request_id: str) -> EngineRequest:
        """Return a request as it is to be sent to an engine now."""
        return self._unfinished[request_id].resumption()

    def resume(self, replica: Replica) -> None:
        """Have a replica's next engine continue its requests with the tokens delivered so far."""
        for unfinished in self._unfinished.values():
            if unfinished.replica is replica:
                unfinished.resumed = True

    def move(self, replica: Replica, rest: Replica | None = None) -> None:
        """Have other replicas continue those of a replica's requests that they can.

        Args:
            replica: the replica.
            rest: gets the requests that no replica can continue now; None: they stay.
        """
        targets: dict[str, Replica] = {}
        kept = None if rest is None else (rest, 0)
        for request_id, unfinished in self._unfinished.items():
            if unfinished.replica is replica:
                chosen = self._choose(unfinished.request, unfinished.version) or kept
                if chosen is not None and chosen[0] is not replica:
                    target, cached = chosen
                    targets[request_id] = unfinished.replica = target
                    unfinished.resumed = True
                    unfinished.left, unfinished.left_at = replica, len(unfinished.tokens)
                    self._admission.give(unfinished.claim, target.name, cached)
        released = replica.requests.release(targets)
        for ids, suspects in ((released.suspects, True), (released.others, False)):
            for request_id in ids:
                targets[request_id].requests.add([request_id], suspects=suspects)

    def waits_for(self, replica: Replica) -> bool:
        """Return whether a request that a replica had has moved, and has had no token since."""
        unfinished = self._unfinished.values()
        return any(one.left is replica and len(one.tokens) == one.left_at for one in unfinished)

    def has_any_of(self, replica: Replica) -> bool:
        """Return whether a replica has unfinished requests."""
        return any(one.replica is replica for one in self._unfinished.values())

    def give_up(self, request_id: str) -> None:
        """End a request of which engines die."""
        log.error("giving up request %s, which crashes the engine", request_id)
        message = "the engine crashed repeatedly while processing this request"
        self._give_up(request_id, "error", message)

    def end_all(self, reason: Literal["abort", "error"], error: str | None) -> None:
        """End every request with this reason, without sending anything to the engine."""
        for request_id in list(self._unfinished):
            self._give_up(request_id, reason, error)

    def end_of(self, replica: Replica, reason: Literal["abort", "error"], error: str) -> None:
        """End the requests of a replica like :meth:`end_all`."""
        for request_id, unfinished in list(self._unfinished.items()):
            if unfinished.replica is replica:
                self._give_up(request_id, reason, error)

    def end_begun(self, replica: Replica, releases: Collection[str], error: str) -> None:
        """End those of a replica's requests that a release has begun which is not among these."""
        for request_id, unfinished in list(self._unfinished.items()):
            begun = unfinished.release
            if unfinished.replica is replica and begun and begun not in releases:
                self._give_up(request_id, "error", error)

    def _begin(self, request: EngineRequest, deadline: float, now: float) -> Unfinished:
        unread = Unread(self._unread, on_cut=lambda: self._abort(request.id))
        claim = self._admission.add(request, now=now)
        timer = None
        if deadline != math.inf:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(deadline - now, self._expire, request.id)
        replica, cached = self._choose(request, None) or (self._spare(), 0)
        self._admission.give(claim, replica.name, cached)
        return Unfinished(request, unread, claim, now, replica, timer)

    def _end(self, request_id: str, *, finished: bool = False) -> Unfinished | None:
        """Remove a request from the book, whatever ended it."""
        unfinished = self._unfinished.pop(request_id, None)
        if unfinished is not None:
            if unfinished.timer is not None:
                unfinished.timer.cancel()
            if unfinished.prefill is not None:
                unfinished.prefill.cancel()
            self._admission.remove(unfinished.claim, finished=finished, now=time.monotonic())
        return unfinished

    def _abort(self, request_id: str) -> None:
        if unfinished := self._end(request_id):
            unfinished.replica.requests.cancelled(request_id)

    def _expire(self, request_id: str) -> None:
        unfinished = self._unfinished[request_id]
        self._abort(request_id)
        when = "before it was complete" if unfinished.answered else "in the queue"
        unfinished.unread.fail(DeadlineExceeded(f"The request's deadline passed {when}"))

    def _give_up(
        self, request_id: str, reason: Literal["abort", "error"], error: str | None
    ) -> None:
        unfinished = self._end(request_id)
        assert unfinished is not None
        unfinished.unread.put(Output(request_id=request_id, finish_reason=reason, error=error))


def _check_deadline(deadline: float, now: float) -> None:
    if deadline <= now:
        raise DeadlineExceeded("The request's deadline passed before it reached the queue")
