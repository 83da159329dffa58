"""The memory plans of a server's models, so that no memory is promised to two of them."""

import asyncio
from collections.abc import Callable, Sequence

from galley.machine import held_memory, with_descendants
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
        self._plans: dict[str, tuple[Ledger, Callable[[], Sequence[int]], int]] = {}

    def promise(
        self, model: str, ledger: Ledger, engine_pids: Callable[[], Sequence[int]], engines: int = 1
    ) -> None:
        """Promise each of a model's engines the memory in a ledger.

        Args:
            model: the model's name.
            ledger: the ledger of one engine.
            engine_pids: returns the process ids of the engines that run.
            engines: the number of engines.
        """
        self._plans[model] = ledger, engine_pids, engines

    def forget(self, model: str) -> None:
        """Remove a model that is no longer loaded."""
        self._plans.pop(model, None)

    def promised_to_others(self, model: str) -> int:
        """Return the bytes promised to the engines of other models that these have not allocated yet."""
        plans = [plan for name, plan in self._plans.items() if name != model]
        return sum(_not_taken(ledger, pids(), engines) for ledger, pids, engines in plans)


def _not_taken(ledger: Ledger, pids: Sequence[int], engines: int) -> int:
    if ledger.device != "cpu":
        return 0
    held = sum(map(held_memory, with_descendants(pids)))
    return max(0, engines * (ledger.total - ledger.reserve) - held)
