"""The gateway's interface to the component that answers a model's requests."""

from collections.abc import Sequence
from typing import Protocol

from galley.service.streams import Outputs
from galley.service.turns import Share
from galley.types import Adapter, EngineRequest
from galley.types.engine_stats import EngineState, EngineStats, ReleaseStatus, ReplicaStatus
from galley.types.model_info import ModelInfo


class Submitter(Protocol):
    """Accepts requests and reports its state.

    :class:`galley.service.client.EngineClient` is one, backed by engine processes. A cache may take its
    place (:mod:`galley.gateway.make_submitter`). Methods are called from one event loop.
    """

    @property
    def info(self) -> ModelInfo:
        """The description of the loaded model. Raises EngineNotReady until it has been ready once."""

    @property
    def state(self) -> EngineState:
        """Whether requests are accepted, or why not."""

    @property
    def stats(self) -> EngineStats:
        """The sums of the engines' latest statistics."""

    @property
    def restarts(self) -> int:
        """How often an engine was replaced."""

    @property
    def killed_starts(self) -> int:
        """How often an engine was killed while it loaded."""

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The status of each engine that serves the model."""

    @property
    def releases(self) -> Sequence[ReleaseStatus]:
        """The pending work of each release of the model; empty without releases."""

    @property
    def engine_pids(self) -> Sequence[int]:
        """The process ids of the engines that run on this machine."""

    def launch(self) -> None:
        """Start without waiting for completion."""

    async def planned(self) -> None:
        """Wait until the memory plan is known, or the start has ended."""

    async def ready(self) -> ModelInfo:
        """Wait until requests can be submitted. Raises the error that prevented the start."""

    def check_place(self, deadline: float, share: Share) -> None:
        """Raise the errors of :meth:`submit_all` that are certain before a tenant's request is read."""

    def check_early(self, deadline: float, share: Share, priority: int) -> None:
        """Raise the errors of :meth:`submit_all` that are certain before any work is done for a request."""

    def room(self, share: Share) -> int:
        """Return how many sequences the tenant may submit at once."""

    def submit_all(self, requests: Sequence[EngineRequest], deadline: float) -> Sequence[Outputs]:
        """Start all requests of one caller or none; each stream's ``cancel`` aborts its request.

        Args:
            requests: made and checked by a module such as :mod:`galley.service.requests`.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded.

        Raises:
            QueueFull: too many sequences are waiting, or the answers are expected after the deadline.
            DeadlineExceeded: the deadline has passed.
            EngineNotReady: it has not been ready yet, or is closed.
            EngineFailed: it has given up.
        """

    async def submit_when_room(
        self, requests: Sequence[EngineRequest], deadline: float
    ) -> Sequence[Outputs]:
        """Submit like :meth:`submit_all`, but wait while the queue is full; for work already begun."""

    async def load_adapter(self, adapter: Adapter) -> None:
        """Have a LoRA adapter read and checked; requests may then name it.

        Raises:
            ModelError: the adapter cannot be used.
            SettingsError: the model takes no adapters.
        """

    def unload_adapter(self, adapter: Adapter) -> None:
        """Free the adapter; requests that already use it run to completion."""

    async def drain(self, name: str) -> None:
        """Have the other replicas continue the requests of one, and remove it.

        Raises:
            RequestError: there is no such replica.
            Conflict: no other replica is ready.
        """

    async def close(self) -> None:
        """Stop; unfinished streams end with ``finish_reason`` "abort"."""
