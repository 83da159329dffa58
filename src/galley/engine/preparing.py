"""Requests that are not sequences yet: they wait for their grammars to compile or adapters to load."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from galley.engine.adapters import AdapterPool
from galley.engine.build_prefix_tier import TierBuilder
from galley.engine.prefix_tier import PrefixTier
from galley.errors import GalleyError, SettingsError
from galley.grammar.matcher import GrammarMatcher, Grammars
from galley.types import EngineRequest, Generate, Output
from galley.types.transfers import TransferPlan


class Prepared(NamedTuple):
    """A request that can begin.

    Attributes:
        request: the request.
        arrival: time of arrival on the monotonic clock, in seconds.
        grammar: the grammar that its output follows; None for no grammar.
        slot: slot of its adapter, which is held for it; -1 for no adapter.
    """

    request: EngineRequest
    arrival: float
    grammar: GrammarMatcher | None = None
    slot: int = -1


class _Waiting(NamedTuple):
    request: EngineRequest
    arrival: float
    compiled: Future[GrammarMatcher] | None


class Preparing:
    """The waiting requests, in order of arrival.

    When requests hold the slots of all adapters in memory, later requests wait for a slot, and those that
    arrive after them wait behind them, so adapters in constant use cannot starve another.
    """

    def __init__(
        self,
        grammars: Grammars | None = None,
        adapters: AdapterPool | None = None,
        tier: PrefixTier | None = None,
        tiers: TierBuilder | None = None,
    ) -> None:
        """Create an empty queue.

        Args:
            grammars: compiles grammars; None if no request has one.
            adapters: loads adapters; None if no request has one.
            tier: has prefixes on disk, for which sequences wait in it; None if there are none.
            tiers: builds a tier for the exchange of blocks with peers.
        """
        self.grammars = grammars
        self.adapters = adapters
        self.tier = tier
        self._tiers = tiers
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def exchange_blocks(self, plan: TransferPlan, wake: Callable[[], None]) -> int:
        """Exchange blocks with peers from now on; return the port at which they are offered, or 0.

        Raises:
            SettingsError: see :meth:`TierBuilder.with_peers`.
        """
        if self._tiers is None:
            raise SettingsError(f"role is {plan.role}, but this engine has no prefix cache")
        self.tier, port = self._tiers.with_peers(self.tier, plan, wake)
        return port

    def add(self, request: EngineRequest) -> bool:
        """Queue a request that needs preparing; return False for any other."""
        compiled, payload = None, request.payload
        if isinstance(payload, Generate) and payload.sampling.grammar is not None:
            assert self.grammars is not None, "guaranteed by TextInfo.grammars"
            compiled = self.grammars.compile(payload.sampling.grammar, payload.output)
        elif request.adapter is None:
            return False
        self._waiting[request.id] = _Waiting(request, time.monotonic(), compiled)
        return True

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is here."""
        self._waiting.pop(request_id, None)

    def pause(self, seconds: float) -> None:
        """Sleep for so long, or until one of the waiting requests may begin."""
        awaited: list[Future[Any]] = [
            one.compiled for one in self._waiting.values() if one.compiled is not None
        ]
        if self.adapters is not None:
            awaited += self.adapters.on_the_way
        wait([future for future in awaited if not future.done()], seconds)

    def ready(self) -> Iterator[Prepared | Output]:
        """Yield the requests that can begin now, and error outputs for those that never can."""
        if self.adapters is not None:
            self.adapters.settle()
        waiting, self._waiting = self._waiting, {}
        blocked = False
        for one in waiting.values():
            try:
                prepared = None if blocked and one.request.adapter else self._prepared(one)
            except GalleyError as error:
                yield Output(request_id=one.request.id, finish_reason="error", error=str(error))
                continue
            if prepared is not None:
                yield prepared
                continue
            self._waiting[one.request.id] = one
            blocked = blocked or self._needs_slot(one)

    def release(self, request: EngineRequest) -> None:
        """Release the adapter of a request that had begun and is over."""
        if request.adapter is not None and self.adapters is not None:
            self.adapters.release(request.adapter)

    def _needs_slot(self, one: _Waiting) -> bool:
        adapter = one.request.adapter
        if adapter is None or self.adapters is None:
            return False
        return not self.adapters.has_place(adapter)

    def _prepared(self, one: _Waiting) -> Prepared | None:
        grammar = None
        if one.compiled is not None:
            if not one.compiled.done():
                return None
            grammar = one.compiled.result()
        slot: int | None = -1
        if one.request.adapter is not None:
            if self.adapters is None:
                raise GalleyError("the engine was started without adapters; set max_adapters")
            slot = self.adapters.acquire(one.request.adapter)
        return None if slot is None else Prepared(one.request, one.arrival, grammar, slot)
