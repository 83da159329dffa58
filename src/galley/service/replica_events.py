"""The interface of a replica's owner, which handles its events."""

from typing import TYPE_CHECKING, Protocol

from galley.service.frames import Blocks
from galley.types import EngineRequest, Output
from galley.types.model_info import Ledger, ModelInfo

if TYPE_CHECKING:
    from galley.service.replica import Replica


class ReplicaEvents(Protocol):
    """The interface of a replica's owner, which handles its events."""

    def deliver(self, replica: "Replica", output: Output) -> int:
        """Pass on an Output; return the tokens of prompt and output that were computed for it."""

    def resumption(self, request_id: str) -> EngineRequest:
        """Return a request as it is to be sent now."""

    def stepped(self, replica: "Replica") -> None:
        """Record that a step has ended; its statistics are in the replica."""

    def changed(self, replica: "Replica") -> None:
        """Record that the replica's state has changed."""

    def engine_ready(self, replica: "Replica") -> None:
        """Record that a new engine accepts requests, before it is sent any."""

    def engine_died(self, replica: "Replica", given_up: str | None) -> None:
        """Record that a ready engine has ended, and which request is given up because of that."""

    def blocks_changed(self, replica: "Replica", blocks: Blocks) -> None:
        """Record a change of what the engine's prefix cache holds."""

    def leaving(self, replica: "Replica") -> None:
        """Record that the engine is about to end."""

    def check(self, info: ModelInfo) -> None:
        """Raise ModelError if an engine serves another model than the other replicas."""

    def phase_ended(self, replica: "Replica", name: str, seconds: float) -> None:
        """Record the duration of a start-up phase."""

    def planned_memory(self, replica: "Replica", ledger: Ledger) -> None:
        """Record the memory plan of an engine that starts."""
