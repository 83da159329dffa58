"""The requests of one engine: which it has, which wait for it, and which it is suspected to die of."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from galley.service.frames import Abort, Submit
from galley.service.quarantine import Quarantine
from galley.types import EngineRequest


class Released(NamedTuple):
    """Requests taken from an engine, in order.

    Attributes:
        suspects: requests that the engine had when it died.
        others: the rest.
    """

    suspects: list[str]
    others: list[str]


class EngineRequests:
    """Sends requests to one engine, in the order that ``quarantine.py`` decides."""

    def __init__(
        self,
        send: Callable[[Submit | Abort], int],
        resumption: Callable[[str], EngineRequest],
        failures: dict[str, int] | None = None,
    ) -> None:
        """Create it without requests.

        Args:
            send: sends a frame to the engine and returns how many have been sent to it. Without an engine
                it does nothing and returns 0.
            resumption: returns the request with that id, as it is to be sent now.
            failures: counts the failed retries of requests; engines that pass requests on share it.
        """
        self.quarantine = Quarantine(failures)
        self._send = send
        self._resumption = resumption
        self._settled_at = 0

    def add(self, request_ids: list[str], *, suspects: bool = False) -> None:
        """Add requests; ``suspects``: another engine had them when it died."""
        if suspects:
            self._submit(self.quarantine.add_suspects(request_ids))
        else:
            self._submit(self.quarantine.add(request_ids))

    def progressed(self, request_id: str) -> None:
        """Record that the engine produced an Output of the request."""
        self._submit(self.quarantine.progressed(request_id))

    def finished(self, request_id: str) -> None:
        """Record that the request has run to completion."""
        self._submit(self.quarantine.finished(request_id))

    def cancelled(self, request_id: str) -> None:
        """Remove a request that its caller gave up; have the engine drop it."""
        if self.quarantine.cancelled(request_id):
            self._settled_at = self._send(Abort([request_id]))

    def stepped(self, frames_seen: int) -> None:
        """Record how many frames the engine has read; send what waited for a cancellation to be read."""
        if self.quarantine.settling and frames_seen >= self._settled_at:
            self._submit(self.quarantine.settled())

    def engine_ready(self) -> None:
        """Send a new engine the requests."""
        self._submit(self.quarantine.engine_ready())

    def release(self, request_ids: Collection[str]) -> Released:
        """Remove requests, so that another engine can continue them; a running engine drops them."""
        sent, suspects, others = self.quarantine.release(request_ids)
        if sent:
            self._send(Abort(sent))
        self.add([])  # what remains may be sent now
        return Released(suspects, others)

    def _submit(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            sent = self._send(Submit(self._resumption(request_id)))
            assert sent, "requests in quarantine are sent one at a time"
