"""The memory plans of a server's models, so that no memory is promised to two of them."""

import asyncio
from collections.abc import Callable

from galley.machine import held_memory
from galley.types.model_info import Ledger


class MemoryPlans:
    """The ledgers of the models that are loaded or being loaded.

    A KV cache takes its memory as it is used, so memory that is free when a model starts may already be
    promised to another.

    Attributes:
        turn: held from an engine's start until its ledger is known: engines plan one after another.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._plans: dict[str, tuple[Ledger, Callable[[], int | None]]] = {}

    def promise(self, model: str, ledger: Ledger, engine_pid: Callable[[], int | None]) -> None:
        """Promise a model's engine the memory in its ledger; ``engine_pid`` returns its process id."""
        self._plans[model] = ledger, engine_pid

    def forget(self, model: str) -> None:
        """Remove a model that is no longer loaded."""
        self._plans.pop(model, None)

    def others_take(self, model: str) -> int:
        """Return the bytes promised to the engines of other models that these have not allocated yet."""
        plans = [plan for name, plan in self._plans.items() if name != model]
        return sum(_not_taken(ledger, pid()) for ledger, pid in plans)


def _not_taken(ledger: Ledger, pid: int | None) -> int:
    if ledger.device != "cpu":
        return 0
    held = 0 if pid is None else held_memory(pid)
    return max(0, ledger.total - ledger.reserve - held)
