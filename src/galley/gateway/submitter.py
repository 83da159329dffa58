"""What the gateway needs of whatever answers a model's requests."""

from collections.abc import Sequence
from typing import Protocol

from galley.service.streams import Outputs
from galley.service.turns import Share
from galley.types import Adapter, EngineRequest
from galley.types.model_info import EngineState, EngineStats, ModelInfo


class Submitter(Protocol):
    """Takes requests, and says how it is.

    :class:`galley.service.client.EngineClient` is one, with an engine process behind it. A cache or a
    cluster of engines may stand in its place (:mod:`galley.gateway.make_submitter`). Methods are called
    from one event loop.
    """

    @property
    def info(self) -> ModelInfo:
        """What the loaded model says of itself. Raises EngineNotReady until it has been ready once."""

    @property
    def state(self) -> EngineState:
        """Whether it takes requests, or why not."""

    @property
    def stats(self) -> EngineStats:
        """The newest snapshot."""

    @property
    def restarts(self) -> int:
        """How often an engine was replaced."""

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine, if one is running on this machine."""

    def launch(self) -> None:
        """Begin to start, without waiting."""

    async def planned(self) -> None:
        """Wait until it is known what will be taken of the memory, or how the start ended."""

    async def ready(self) -> ModelInfo:
        """Wait until requests can be submitted. Raises what kept it from starting."""

    def check_place(self, deadline: float, share: Share) -> None:
        """Raise as :meth:`submit_all` where that is certain before a tenant's request is read."""

    def check_early(self, deadline: float, share: Share, priority: int) -> None:
        """Raise as :meth:`submit_all` where that is certain before work is done for a request."""

    def room(self, share: Share) -> int:
        """How many sequences the tenant may submit at once."""

    def submit_all(self, requests: Sequence[EngineRequest], deadline: float) -> Sequence[Outputs]:
        """Start all requests of one caller or none; each stream's ``cancel`` aborts its request.

        Args:
            requests: from :func:`galley.service.requests.expand`.
            deadline: on the monotonic clock, in seconds: streams that have not ended by then raise
                DeadlineExceeded.

        Raises:
            QueueFull: too many are waiting, or the answers are expected after the deadline.
            DeadlineExceeded: the deadline has passed.
            EngineNotReady: it has not been ready yet, or is closed.
            EngineFailed: it has given up.
        """

    async def submit_patiently(
        self, requests: Sequence[EngineRequest], deadline: float
    ) -> Sequence[Outputs]:
        """As :meth:`submit_all`, for what has begun: it waits while the queue is full."""

    async def load_adapter(self, adapter: Adapter) -> None:
        """Have a LoRA adapter read and checked; requests may then name it.

        Raises:
            ModelError: it cannot be used.
            SettingsError: the model takes none.
        """

    def unload_adapter(self, adapter: Adapter) -> None:
        """Free what the adapter takes; requests that have it go on to their end."""

    async def close(self) -> None:
        """Stop; unfinished streams end with ``finish_reason`` "abort"."""
