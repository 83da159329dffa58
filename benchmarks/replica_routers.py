"""Compare routers on three real replicas, with sessions of agents that share prefixes within their tenant.

    python -m benchmarks.replica_routers [MODEL] [--rounds 3] [--together] [--json FILE]

Each of 8 tenants has a prefix and 3 sessions. A session begins when the one before it has its first answer
(``--together``: all begin at the same time). It sends its next turn, which is everything before and 40 new
tokens, when the last one is answered. So the share of the prompts that is found in caches depends little on
the speed of the machine. Times to first token do depend on it: measure them on an idle machine.

Each router gets new engine processes, of one thread each. The baseline is one engine whose cache is as
large as those of all three. Routers are those of ``galley plan cluster``: Galley's own, and others in the
form in which Ray and gateways have them.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from galley.formats.source import resolve_model
from galley.plan.cluster.routers import ROUTERS
from galley.service.client import EngineClient
from galley.service.requests import expand
from galley.service.routing import Candidate, Choice, ReplicaFigures, Router
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, SamplingParams

TENANTS, SESSIONS, TURNS = 8, 3, 6
PREFIX, NEW, ANSWER = 256, 40, 24
"""Tokens of a tenant's prefix, of what each turn adds, and of its answer."""

REPLICAS: Final = 3
CACHE: Final = 8192
"""Tokens that the cache of a replica holds: fewer than all sessions have in the end."""

ONE: Final = "one engine"


@dataclass(frozen=True)
class Counted(ReplicaFigures):
    """The figures of a replica, with the requests that Ray's router counts."""

    requests: int = 0


class Counting:
    """A router that is also told how many requests each replica has."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.client: EngineClient | None = None

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> Choice:
        """See :class:`galley.service.routing.Router`."""
        assert self.client is not None
        counts = Counter(one.replica.name for one in self.client.fleet.book)
        known = [
            Counted(one.name, one.owed, one.pace, one.blocks, one.silent, counts[one.name])
            for one in candidates
        ]
        return self._router.choose(request, known)

    def forget(self, name: str) -> None:
        """See :class:`galley.service.routing.Router`."""
        self._router.forget(name)


@dataclass
class Figures:
    """What was measured: tokens of prompts, those found in a cache, and seconds to each first token."""

    prompts: int = 0
    cached: int = 0
    ttft: list[float] = field(default_factory=list)

    @property
    def cached_share(self) -> float:
        """The share of the prompts' tokens that was found in a cache."""
        return self.cached / self.prompts


async def session(
    client: EngineClient, tenant: str, name: str, seed: int, figures: Figures, begun: asyncio.Event
) -> None:
    """Run the turns of a session; ``begun`` is set after the first."""
    words = client.info.require_text().vocab_size

    def drawn(what: str, count: int) -> list[int]:
        chance = random.Random(f"{seed} {what}")
        return [chance.randrange(5, words) for _ in range(count)]

    history = drawn(tenant, PREFIX)
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    for turn in range(TURNS):
        history += drawn(f"{name} {turn}", NEW)
        [request] = expand(
            history, params, client.info, request_id=f"{name}-{turn}", cache_salt=tenant
        )
        began = time.perf_counter()
        first, said = True, list[int]()
        async for output in client.submit(request):
            if first:
                figures.ttft.append(time.perf_counter() - began)
                figures.prompts += len(history)
                figures.cached += output.cached_tokens
                first = False
            said += output.tokens
        history += said
        begun.set()


async def sessions(
    client: EngineClient, tenant: str, seed: int, figures: Figures, *, together: bool
) -> None:
    """Run the sessions of a tenant."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(SESSIONS):
            begun = asyncio.Event()
            name = f"{tenant}.{number}"
            tasks.create_task(session(client, tenant, name, seed, figures, begun))
            if not together:
                await begun.wait()


async def measured(model: str, router: str, seed: int, *, together: bool) -> Figures:
    """Return the figures of all sessions with new engines."""
    folder = resolve_model(model)
    replicas = 1 if router == ONE else REPLICAS
    settings = EngineSettings(
        model=model, threads=1, kv_cache_tokens=CACHE * REPLICAS // replicas, max_running=8
    )
    chosen = None if router == ONE else Counting(ROUTERS[router](seed))
    client = EngineClient(settings, str(folder), max_queue=1000, replicas=replicas, router=chosen)
    if chosen is not None:
        chosen.client = client
    client.launch()
    figures = Figures()
    try:
        await client.ready()
        while not all(one.accepts for one in client.fleet.replicas):
            await client.fleet.change()
        await asyncio.gather(
            *(
                sessions(client, f"tenant{number}", seed, figures, together=together)
                for number in range(TENANTS)
            )
        )
    finally:
        await client.close()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("router", "cached, mean (least to most)", "TTFT P50", "TTFT P95")
    rows = {}
    for router in (ONE, *ROUTERS):
        rounds = [
            asyncio.run(measured(options.model, router, seed, together=options.together))
            for seed in range(options.rounds)
        ]
        shares = [one.cached_share for one in rounds]
        p50, p95 = np.quantile([seconds for one in rounds for seconds in one.ttft], [0.5, 0.95])
        rows[router] = {"cached": shares, "ttft_p50_s": float(p50), "ttft_p95_s": float(p95)}
        table.add_row(
            router,
            f"{np.mean(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})",
            f"{1000 * p50:.0f} ms",
            f"{1000 * p95:.0f} ms",
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
