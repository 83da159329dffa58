"""A response cache with repeated requests."""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.bench.serve.client import Client
from galley.bench.serve.server import started
from galley.errors import EngineError
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding

_REPEATED: Final = 0.4
MODES: Final = ("off", "exact")
_PARTS: Final = 3
"""Parts of the requests, whose figures show how much they vary."""


def _run(lab: Lab) -> Finding:
    count = 40 if lab.quick else 200
    order = _order(count)
    with (
        tempfile.TemporaryDirectory() as at,
        started(quiet=True, settings=lab.with_()) as (plain, _),
        started(
            *("--response-cache", "exact", "--response-cache-store", str(Path(at) / "answers")),
            quiet=True,
            settings=lab.with_(),
        ) as (caching, _),
    ):
        times = asyncio.run(_answered({"off": plain, "exact": caching}, order))
    first = {number: place for place, number in reversed(list(enumerate(order)))}
    again = [place for place, number in enumerate(order) if first[number] != place]
    hits = Spread.of([1e3 * times["exact"][place] for place in again])
    computed = Spread.of([1e3 * times["off"][place] for place in again])
    new = sorted({*range(count)} - {*again})
    total = {mode: _total(taken, again, new) for mode, taken in times.items()}
    parts = [
        _saved(*(_total(times[mode], again[i::_PARTS], new[i::_PARTS]) for mode in MODES))
        for i in range(_PARTS)
    ]
    saved = Spread(_saved(total["off"], total["exact"]), min(parts), max(parts))
    ratios = [times["exact"][place] / times["off"][place] for place in again]
    return Finding(
        figures=[
            Figure(measured=saved, predicted=100 * len(again) / count),
            Figure(measured=Spread.of(ratios)),
        ],
        header=["answers", "median ms", "range"],
        rows=[
            [name, f"{one.median:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
            for name, one in (("computed", computed), ("from the cache", hits))
        ],
        pictures=[
            Bars(
                title="All requests, one after another",
                unit="s",
                names=["without cache", "with cache"],
                series=[Series("measured", [total["off"], total["exact"]])],
            )
        ],
        notes=[
            f"{count} greedy requests of 64 tokens, {len(again) / count:.0%} of which repeat an earlier "
            "one. That share is an assumption: record your traffic (galley serve --record) to know yours."
        ],
    )


def _total(seconds: Sequence[float], *kinds: Sequence[int]) -> float:
    """Return the seconds of all requests, each taken as the median of its kind.

    A request that had to wait for another process would outweigh many others.
    """
    return sum(
        len(places) * statistics.median(seconds[place] for place in places) for places in kinds
    )


def _saved(off: float, exact: float) -> float:
    """Return the share of the time that the cache saves, in percent."""
    return 100 * (1 - exact / off)


def _order(count: int) -> list[int]:
    """Return numbers of questions, a share of which repeat an earlier one."""
    random = np.random.default_rng(0)
    order: list[int] = []
    for place in range(count):
        repeats = place > 0 and random.random() < _REPEATED
        order.append(order[int(random.integers(place))] if repeats else place)
    return order


async def _answered(urls: dict[str, str], order: list[int]) -> dict[str, list[float]]:
    """Return the seconds of each question on each server, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in urls}
    with contextlib.ExitStack() as stack:
        clients = {
            name: stack.enter_context(contextlib.closing(Client(url))) for name, url in urls.items()
        }
        _, listed = await clients["off"].json("/v1/models")
        for number in [-1, *order]:  # the first request of a server is slower than the rest
            body = {
                "model": listed["data"][0]["id"],
                "prompt": f"Question {number}: what is the answer?",
                "max_tokens": 64,
                "temperature": 0,
                "ignore_eos": True,
            }
            for name, client in clients.items():
                began = time.perf_counter()
                status, answer = await client.json("/v1/completions", body)
                seconds[name].append(time.perf_counter() - began)
                if status != 200:
                    raise EngineError(f"the server answered {status}: {answer}")
    return {name: taken[1:] for name, taken in seconds.items()}


EXPERIMENT: Final = Experiment(
    name="response-cache",
    title="A cache of responses",
    statement="A cache of responses saves as much of the work as there are requests that repeat earlier "
    "ones, 30 to 50 % in published traffic, and answers these at once.",
    source="GPT Semantic Cache, arXiv:2411.05276; MeanCache, arXiv:2403.02694 (31 % repeated)",
    prediction="The share of the requests that repeat an earlier one, here 40 % by construction.",
    claims=(
        Claim(figure="time saved", unit="%", low=30, high=50),
        Claim(figure="time of a hit to that of a computed answer", unit="times", high=0.2),
    ),
    run=_run,
)
