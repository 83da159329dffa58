"""Measurements of candidates: each serves a part of the trace, replayed at its times."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from galley.bench.serve.client import CallFailed, Client
from galley.bench.serve.lengths import Lengths
from galley.bench.serve.load import closed_loop
from galley.bench.serve.replay import RecordedTexts, Texts, replay
from galley.bench.serve.server import started
from galley.bench.serve.session import first_model
from galley.bench.serve.words import Words
from galley.bench.serve.workload import Workload
from galley.errors import EngineError
from galley.machine import cpu_seconds
from galley.settings.engine import EngineSettings
from galley.traffic.trace import Turn
from galley.tune.goal import Limit
from galley.tune.space import Candidate

_WARM_UP: Final = Workload(
    endpoint="completions",
    prompt_tokens=Lengths("fixed", 4),
    output_tokens=Lengths("fixed", 4),
)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a candidate on the first turns of the trace.

    Attributes:
        turns: how many.
        latencies: name of each limit of the goal -> seconds; None: too many requests failed.
        cpu_seconds: CPU time of all of the server's processes.
        output_tokens: generated.
        cached_share: share of the prompt tokens that the prefix cache had.
        problem: why it could not be measured; empty if it was.
    """

    candidate: Candidate
    turns: int
    latencies: dict[str, float | None] = {}
    cpu_seconds: float = 0.0
    output_tokens: int = 0
    cached_share: float = 0.0
    problem: str = ""

    @property
    def cost(self) -> float:
        """CPU seconds for a thousand output tokens; infinite if it could not be measured."""
        return 1000 * self.cpu_seconds / self.output_tokens if self.output_tokens else math.inf

    def factor(self, goal: Sequence[Limit]) -> float:
        """Return the largest ratio of a latency to its limit: at most 1 if the goal is met."""
        if self.problem:
            return math.inf
        ratios = []
        for limit in goal:
            seconds = self.latencies.get(limit.name)
            ratios.append(math.inf if seconds is None else seconds / limit.seconds)
        return max(ratios)

    def rank(self, goal: Sequence[Limit]) -> tuple[float, float]:
        """Return a key that is less for better trials: by cost if they meet the goal, else by distance."""
        return max(1.0, self.factor(goal)), self.cost


@dataclass
class Bench:
    """Measures candidates on a trace.

    Attributes:
        settings: of the engine, which candidates change.
        turns: the whole trace.
        speed: how many times as fast as recorded.
        goal: latencies to measure.
        seed: of synthetic texts.
        texts: the prompts of all turns; None: synthetic ones, of words that the first server counts.
    """

    settings: EngineSettings
    turns: Sequence[Turn]
    speed: float
    goal: Sequence[Limit]
    seed: int = 0
    texts: Texts | RecordedTexts | None = None

    def measure(
        self, candidate: Candidate, turns: int, on_end: Callable[[], None] = lambda: None
    ) -> Trial:
        """Serve the first ``turns`` of the trace with a candidate.

        Args:
            candidate: settings of the server.
            turns: how many.
            on_end: called at the end of each request.
        """
        # Blocks on disk would be computed by the first trial alone.
        settings = replace(candidate.settings(self.settings), prefix_cache_dir="")
        try:
            replicas = ("--replicas", str(candidate.replicas))
            with started(*replicas, quiet=True, settings=settings) as (url, pid):
                return asyncio.run(self._replayed(url, pid, candidate, turns, on_end))
        except (EngineError, CallFailed) as error:
            return Trial(candidate=candidate, turns=turns, problem=str(error))

    async def _replayed(
        self, url: str, pid: int, candidate: Candidate, turns: int, on_end: Callable[[], None]
    ) -> Trial:
        with contextlib.closing(Client(url)) as client:
            model = await first_model(client)
            # The words are the same for all candidates, and finding them is no part of what they cost.
            self.texts = self.texts or Texts(
                await Words.learn(client, model, chat=False), self.seed, self.turns
            )
            await _warm_up(client, model, 2 * candidate.replicas)
            before = cpu_seconds(pid)
            _, point, run = await replay(
                client,
                self.turns[:turns],
                speed=self.speed,
                model=model,
                seed=self.seed,
                objective={},
                price_per_hour=None,
                on_end=on_end,
                texts=self.texts,
            )
            used = cpu_seconds(pid) - before
        latencies = {limit.name: limit.of(run.samples) for limit in self.goal}
        return Trial(
            candidate=candidate,
            turns=turns,
            latencies={n: s if math.isfinite(s) else None for n, s in latencies.items()},
            cpu_seconds=used,
            output_tokens=sum(s.output_tokens for s in run.samples if not s.error),
            cached_share=point.cached_share,
        )


async def _warm_up(client: Client, model: str, count: int) -> None:
    """Send requests at the same time: the first ones of a server cost as much as ten later ones."""
    requests = _WARM_UP.requests(model, Words(), run=0)
    await closed_loop(client, requests, concurrency=count, count=count)
