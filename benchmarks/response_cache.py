"""Measure hits of the response cache: latency at a fixed request rate, and CPU time of each hit.

    python -m benchmarks.response_cache [--rate 1000] [--seconds 10] [--redis URL]

Requests arrive in an open loop. A hit is the work of a served call: compute the key, look it up, and read
the stored answer from its stream. HTTP is not included; ``benchmarks/http_cost.py`` measures that.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from galley.cache.directives import NO_DIRECTIVES, Outcome
from galley.cache.entry import Entry, body_of
from galley.cache.keys import request_key
from galley.cache.response_cache import ResponseCache, open_store
from galley.cache.responses import Lookup, ModelResponses
from galley.cache.store import Bounds
from galley.errors import NotStored
from galley.service.streams import Outputs
from galley.types import EngineRequest, Generate, Output, SamplingParams, Tokens

BOUNDS = Bounds(bytes=1 << 30, entries=10**6, seconds=3600)
ENTRIES = 2000
PROMPT, ANSWER = 500, 200


class NoEngine:
    """Stands in for the engine and fails if it is called: a hit needs no engine."""

    def submit_all(self, requests: Sequence[EngineRequest], deadline: float) -> Sequence[Outputs]:
        """Fail."""
        raise NotStored("the store was too slow")

    async def submit_when_room(
        self, requests: Sequence[EngineRequest], deadline: float
    ) -> Sequence[Outputs]:
        """Fail."""
        raise NotStored("the store was too slow")


class NoCounts:
    """Checks that each look-up is a hit, and counts nothing."""

    def looked_up(self, result: str) -> None:
        """Check that it is a hit."""
        assert result == "hit", result

    def checked(self, *, same: bool) -> None:
        """Count nothing."""

    def semantic_off(self, off: bool) -> None:
        """Count nothing."""

    def saved(self, *, prompt: int, generated: int, seconds: float) -> None:
        """Count nothing."""


def request(number: int) -> EngineRequest:
    """Return one of the requests that have been answered before."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER, seed=number)
    prompt = [number, *range(PROMPT - 1)]
    return EngineRequest(id=f"r{number}-0-0", payload=Generate(prompt=prompt, sampling=sampling))


async def fill(cache: ResponseCache, identity: bytes) -> None:
    """Store all answers."""
    now = time.time()
    for number in range(ENTRIES):
        result = Tokens(tokens=list(range(ANSWER)))
        body = body_of([Output(request_id="", result=result, finish_reason="length")])
        key = request_key(identity, request(number))
        entry = Entry(key=key, kind="text", model="m", created=now, expires=now + 3600, body=body)
        await cache.store.put(entry)


async def hit(responses: ModelResponses, number: int) -> None:
    """Look one request up, and read its answer."""
    ask = Lookup(
        requests=[request(number)],
        deadline=float("inf"),
        directives=NO_DIRECTIVES,
        seeded=False,
        model="m",
        outcome=Outcome(),
    )
    [stream] = await responses.submit(ask, "exact")
    tokens = 0
    async for output in stream:
        tokens += len(output.tokens)
    assert tokens == ANSWER


async def measure(place: str, rate: float, seconds: float) -> str:
    """Return a line with the figures of one store."""
    cache = ResponseCache(open_store(place, BOUNDS), BOUNDS)
    responses = ModelResponses(
        cache, NoEngine(), b"model", mode="exact", folder="", counts=NoCounts()
    )
    await fill(cache, b"model")
    await asyncio.sleep(1)
    times: list[float] = []

    lost = 0

    async def one(due: float, number: int) -> None:
        nonlocal lost
        try:
            await hit(responses, number)
        except NotStored:
            lost += 1
        times.append(time.perf_counter() - due)

    count = int(rate * seconds)
    tasks = []
    cpu, began = time.process_time(), time.perf_counter()
    for index in range(count):
        due = began + index / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due, index % ENTRIES)))
    await asyncio.gather(*tasks)
    cpu = time.process_time() - cpu
    await cache.close()
    times.sort()
    p50, p99 = (1000 * times[int(share * count)] for share in (0.5, 0.99))
    return (
        f"{place.partition('://')[0]:<8} {count / (time.perf_counter() - began):7.0f} hits/s  "
        f"p50 {p50:.3f} ms  p99 {p99:.3f} ms  {1e6 * cpu / count:.0f} us CPU a hit, {lost} unanswered"
    )


def main() -> None:
    """Measure the stores that are given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--redis", metavar="URL", help="also measure this Redis server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for place in filter(None, (str(Path(folder) / "sqlite"), given.redis)):
            print(asyncio.run(measure(place, given.rate, given.seconds)))


if __name__ == "__main__":
    main()
