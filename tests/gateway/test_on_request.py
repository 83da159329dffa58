"""Which model is evicted for which, with models whose engines are not started."""

import asyncio
import time

import pytest

from galley.errors import EngineFailed, MemoryPressure, NotEnoughMemory
from galley.gateway.on_request import OnRequest
from galley.gateway.served import ServedModel
from galley.observe.metrics import Metrics
from galley.service.spawn import Spawner
from galley.settings.config import Settings
from galley.types import OnPhase
from galley.types.model_info import OnLedger


class Weightless(ServedModel):
    """A model of which a fixed number fit in memory; the test sets whether it is busy."""

    fitting = 1
    memory_holds: set[str]

    def __init__(self, name: str, memory_holds: set[str]) -> None:
        settings = Settings(served_model_name=name, load_on_request=True)
        super().__init__(settings, Metrics(), Spawner(settings))
        self.memory_holds = memory_holds
        self.has_requests = False

    async def start(
        self, on_phase: OnPhase | None = None, on_ledger: OnLedger | None = None
    ) -> None:
        if len(self.memory_holds) >= self.fitting:
            raise NotEnoughMemory(f"{self.name} does not fit in memory")
        self.memory_holds.add(self.name)

    async def unload(self) -> None:
        self.memory_holds.remove(self.name)

    @property
    def is_loaded(self) -> bool:
        return self.name in self.memory_holds

    @property
    def busy(self) -> bool:
        return self.has_requests


def models(*names: str, fitting: int) -> list[Weightless]:
    Weightless.fitting = fitting
    memory_holds: set[str] = set()
    return [Weightless(name, memory_holds) for name in names]


def run(models: list[Weightless], *wanted: Weightless, most: int = 9, timeout: float = 9) -> None:
    """Request models one after another."""

    async def ask() -> None:
        loader = OnRequest(models, most=most, timeout=timeout)
        try:
            for model in wanted:
                await loader.ensure(model, time.monotonic() + 60)
        finally:
            await loader.close()

    asyncio.run(ask())


def test_what_does_not_fit_the_memory_takes_the_place_of_the_least_recently_used() -> None:
    a, b, c = models("a", "b", "c", fitting=2)
    run([a, b, c], a, b, a, c)
    assert a.memory_holds == {"a", "c"}


def test_a_model_with_requests_keeps_its_place() -> None:
    a, b, c = models("a", "b", "c", fitting=2)
    a.has_requests = True
    run([a, b, c], a, b, c)
    assert a.memory_holds == {"a", "c"}


def test_without_memory_the_error_names_the_other_models() -> None:
    a, b = models("a", "b", fitting=1)
    a.has_requests = True
    with pytest.raises(
        MemoryPressure, match="no room for b, because other models have requests: a"
    ):
        run([a, b], a, b, timeout=0.3)
    assert a.memory_holds == {"a"}


def test_what_never_fits_is_refused_at_once() -> None:
    [a] = models("a", fitting=0)
    with pytest.raises(EngineFailed, match="a cannot be loaded: a does not fit in memory"):
        run([a], a)
