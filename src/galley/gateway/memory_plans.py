"""What the models of a server will take of the memory: none is promised what another was."""

import asyncio
from collections.abc import Callable

from galley.machine import held_memory
from galley.types.model_info import Ledger


class MemoryPlans:
    """The ledgers of the models that are loaded or being loaded.

    A KV cache takes its memory as it is used, so what is free when a model starts may be another's.

    Attributes:
        turn: held from an engine's start until its ledger is known: engines plan one after another.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._plans: dict[str, tuple[Ledger, Callable[[], int | None]]] = {}

    def promise(self, model: str, ledger: Ledger, engine_pid: Callable[[], int | None]) -> None:
        """The model's engine, whose process is the one told, may take what its ledger says."""
        self._plans[model] = ledger, engine_pid

    def forget(self, model: str) -> None:
        """The model is not loaded any more."""
        self._plans.pop(model, None)

    def others_take(self, model: str) -> int:
        """Bytes that the engines of other models have not taken yet, and may."""
        plans = [plan for name, plan in self._plans.items() if name != model]
        return sum(_not_taken(ledger, pid()) for ledger, pid in plans)


def _not_taken(ledger: Ledger, pid: int | None) -> int:
    if ledger.device != "cpu":
        return 0
    held = 0 if pid is None else held_memory(pid)
    return max(0, ledger.total - ledger.reserve - held)
