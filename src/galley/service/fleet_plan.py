"""The engines of a model as they are to be started."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from galley.errors import NotEnoughMemory
from galley.service.frames import Blocks
from galley.service.holders import CachedTokens
from galley.service.links import ReplicaSource
from galley.service.routing import Router
from galley.service.spawn import Spawned
from galley.service.watchdog import Watchdog
from galley.types import OnPhase
from galley.types.engine_stats import ReplicaStatus
from galley.types.model_info import Ledger, OnLedger, OnReleaseFinished
from galley.types.transfers import TransferPlan

if TYPE_CHECKING:
    from galley.service.fleet import Fleet


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The engines of a model, and whom to tell about them.

    Attributes:
        folder: the checkpoint's folder.
        max_queue: sequences that may wait in addition to the running ones.
        begin: spawns an engine process.
        watchdog: creates the watchdog of an engine.
        replicas: engines on this machine.
        remotes: sources of engines elsewhere.
        router: chooses an engine for each request; needed if there can be more than one.
        members: runs as long as the fleet, and has it follow a list of engines elsewhere that changes;
            None: they are ``remotes`` all the time.
        contents: digest of the checkpoint's files, if there are engines elsewhere.
        promised: returns the bytes of memory that other models' engines have yet to allocate.
        on_phase: called at the end of each start-up phase of the first engine.
        on_ledger: called with the memory plan of each engine that starts.
        on_step: called with the status of an engine after each of its steps.
        on_blocks: called with each change of what the prefix caches hold.
        publishes_tokens: whether these changes have the tokens of blocks.
        on_finished: called with the figures of each sequence that a release has finished.
        transfer: how engines on this machine exchange keys and values with others; None: they do not.
        cached_tokens: compares a request's prompt with caches, for replicas to fetch from each other.
    """

    folder: str
    max_queue: int
    begin: Callable[[], Spawned]
    watchdog: Callable[[], Watchdog]
    replicas: int = 1
    remotes: Sequence[ReplicaSource] = ()
    router: Router | None = None
    members: "Callable[[Fleet], Coroutine[Any, Any, None]] | None" = None
    contents: str = ""
    promised: Callable[[], int] = lambda: 0
    on_phase: OnPhase | None = None
    on_ledger: OnLedger | None = None
    on_step: Callable[[ReplicaStatus], None] | None = None
    on_blocks: Callable[[Blocks], None] | None = None
    publishes_tokens: bool = False
    on_finished: OnReleaseFinished | None = None
    transfer: TransferPlan | None = None
    cached_tokens: CachedTokens | None = None

    def check_memory(self, ledger: Ledger) -> None:
        """Raise NotEnoughMemory if all engines on this machine together do not fit."""
        needed = (ledger.total - ledger.reserve) * self.replicas + ledger.reserve
        if ledger.device == "cpu" and needed > ledger.available:
            raise NotEnoughMemory(
                f"{self.replicas} replicas need {needed:,} bytes of memory, but "
                f"{ledger.available:,} are available; use fewer --replicas, a smaller "
                "--weight-dtype or lower --kv-cache-tokens"
            )
