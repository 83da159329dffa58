"""A sample of semantic hits that are generated as well: how many were false, and when to stop.

A hit is false if the answer that is generated for its own question says something else.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from galley.cache.chances import at_least
from galley.cache.entry import tokens_in
from galley.cache.flight import Engine
from galley.cache.semantic import Semantic
from galley.errors import GalleyError
from galley.types import EngineRequest, Generate, Output

log = logging.getLogger("galley.cache")

CERTAINTY: Final = 0.01
"""Semantic hits are turned off when so many false ones have at most this probability within the budget."""
_WINDOW: Final = 1000
"""The latest checks are what counts, so that a change in the traffic shows."""
_AT_A_TIME: Final = 2
"""Checks that run at a time; hits beyond are not checked."""
_SECONDS: Final = 600.0
_LAST: Final = 100
"""The priority of checks: after all requests of clients."""


class CheckCounts(Protocol):
    """Counts checked hits of one model."""

    def checked(self, *, same: bool) -> None:
        """Count a hit that was generated as well."""

    def semantic_off(self, off: bool) -> None:
        """Note whether semantic hits are turned off."""


class HitChecks:
    """The checks of one model's semantic hits.

    Attributes:
        off: whether there were so many false ones that semantic hits are turned off.
    """

    def __init__(
        self,
        semantic: Semantic,
        engine: Engine,
        counts: CheckCounts,
        decode: Callable[[list[int]], str],
        *,
        model: str,
        share: float,
        budget: float,
    ) -> None:
        """Have checked nothing yet.

        Args:
            semantic: compares answers.
            engine: generates them.
            counts: the model's metrics.
            decode: returns the text of tokens.
            model: the model's name, for the log.
            share: share of hits to check.
            budget: share of false hits that is accepted.
        """
        self.off = False
        self._semantic = semantic
        self._engine = engine
        self._counts = counts
        self._decode = decode
        self._model = model
        self._share = share
        self._budget = budget
        self._last: deque[bool] = deque(maxlen=_WINDOW)
        """Whether each of the last checked hits was false."""
        self._tasks: set[asyncio.Task[None]] = set()

    def sample(
        self,
        request: EngineRequest,
        stored: Sequence[Output],
        on_false: Callable[[Sequence[Output]], None],
    ) -> None:
        """Check a hit in the background, if it is in the sample.

        Args:
            request: the request that the stored answer was given to.
            stored: the answer.
            on_false: called with the right answer if the stored one was not.
        """
        if random.random() >= self._share or len(self._tasks) >= _AT_A_TIME:
            return
        task = asyncio.create_task(self._check(request, stored, on_false), name="galley-check")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(
        self,
        request: EngineRequest,
        stored: Sequence[Output],
        on_false: Callable[[Sequence[Output]], None],
    ) -> None:
        try:
            fresh = await self._generated(request)
        except GalleyError as error:
            log.debug("a semantic hit could not be checked: %s", error)
            return
        if fresh is None:
            return
        same = await self._same(request, stored, fresh)
        if same is None:
            return
        self._note(same=same)
        if not same:
            on_false(fresh)

    async def _generated(self, request: EngineRequest) -> list[Output] | None:
        """Return the engine's answer; None if it gives none."""
        own = msgspec.structs.replace(request, id=f"{request.id}.check", priority=_LAST)
        [stream] = await self._engine.submit_when_room([own], time.monotonic() + _SECONDS)
        try:
            outputs = [output async for output in stream]
        except BaseException:
            stream.cancel()
            raise
        ended = outputs and outputs[-1].finish_reason not in (None, "error", "abort")
        return outputs if ended else None

    async def _same(
        self, request: EngineRequest, stored: Sequence[Output], fresh: Sequence[Output]
    ) -> bool | None:
        texts = []
        for outputs in (stored, fresh):
            text = self._decode(tokens_in(outputs))
            if isinstance(request.payload, Generate):
                # The engine knows no stop strings: the reader cuts the text.
                for stop in request.payload.sampling.stop:
                    text = text.partition(stop)[0]
            texts.append(text)
        return await self._semantic.agree(*texts)

    def _note(self, *, same: bool) -> None:
        self._last.append(not same)
        self._counts.checked(same=same)
        if not self.off and not same and self._exceeds_budget():
            self.off = True
            self._counts.semantic_off(True)
            log.warning(
                "%s: %d of %d checked semantic hits were false, more than the budget of %.3g %% allows; "
                "only equal requests are answered from the cache until the model is loaded again (raise "
                "semantic_cache_threshold: galley cache tune)",
                self._model,
                sum(self._last),
                len(self._last),
                100 * self._budget,
            )

    def _exceeds_budget(self) -> bool:
        return at_least(sum(self._last), len(self._last), self._budget) <= CERTAINTY

    async def close(self) -> None:
        """End the checks that run. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
