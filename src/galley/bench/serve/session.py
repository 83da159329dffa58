"""All runs of one command against a running server."""

import asyncio
import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from galley import __version__
from galley.bench.serve.arrivals import poisson
from galley.bench.serve.client import CallFailed, Client
from galley.bench.serve.load import Run, closed_loop, open_loop
from galley.bench.serve.measure import summarize
from galley.bench.serve.results import Point, Report
from galley.bench.serve.words import Words
from galley.bench.serve.workload import Prepared, Workload
from galley.errors import EngineError, SettingsError
from galley.machine import raise_open_files

_TICK: Final = 0.25  # seconds between two updates of the progress bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of one command.

    Attributes:
        kind: "rate" and "concurrency" are swept over ``loads``; a "trace" has the times of its lines.
        loads: requests a second, or requests at a time.
        requests: of each run.
        seconds: in place of ``requests``: how long requests are started in each run.
        warm_up: requests before each run that are not counted.
        times: of a trace, seconds.
        seed: of arrival times.
        objective, price_per_hour: see :func:`~galley.bench.serve.measure.summarize`.
    """

    kind: str
    loads: Sequence[float]
    requests: int | None = None
    seconds: float | None = None
    warm_up: int = 4
    times: Sequence[float] = ()
    seed: int = 0
    objective: dict[str, float] = field(default_factory=dict)
    price_per_hour: float | None = None

    def arrivals(self, load: float) -> Sequence[float]:
        """Return the times at which requests of an open loop are sent, in seconds."""
        if self.kind == "trace":
            return [t for t in self.times if self.seconds is None or t < self.seconds]
        return poisson(load, seed=self.seed, requests=self.requests, seconds=self.seconds)

    def size(self, load: float) -> int:
        """Return a run's length for the progress bar: requests, or seconds of a closed loop by time."""
        if self.kind == "concurrency":
            return self.requests or math.ceil(self.seconds or 0)
        return len(self.arrivals(load))


Progress = Callable[[str, int], None]
"""Called with a run's name and the completed share of the total size of all runs."""


async def run_all(
    client: Client,
    plan: Plan,
    workload: Workload,
    *,
    model: str | None,
    target: str,
    workload_facts: dict[str, str],
    machine: str,
    on_progress: Progress = lambda name, position: None,
) -> Report:
    """Run every load, with a warm-up before each.

    Args:
        client: client of the server; closed at the end.
        plan: the runs.
        workload: the requests.
        model: the served name; None is the first model that the server lists.
        target: what is measured, for the report.
        workload_facts: the workload in words, for the report.
        machine: the client's machine, for the report.
        on_progress: called four times a second.

    Raises:
        EngineError: the server cannot be reached, or refuses the first request.
        SettingsError: the model has to be named.
    """
    raise_open_files()
    started = datetime.datetime.now(datetime.UTC)
    try:
        model = model or await first_model(client)
        words = Words()
        if not workload.recordings:
            words = await Words.learn(client, model, chat=workload.endpoint == "chat")
        points: list[Point] = []
        position = 0
        for number, load in enumerate(plan.loads):
            if plan.warm_up:
                # The warm-up has its own prompts, so that no prompt of --data is in the prefix cache.
                others = dataclasses.replace(workload, lines=(), seed=workload.seed + 1)
                warm_up = others.requests(model, words, run=number)
                lanes = min(plan.warm_up, int(load)) if plan.kind == "concurrency" else 1
                checked(await closed_loop(client, warm_up, lanes, count=plan.warm_up))
            requests = workload.requests(model, words, run=number)
            report = functools.partial(_report, on_progress, position)
            points.append(await _point(client, plan, requests, load, report))
            position += plan.size(load)
    except CallFailed as error:
        raise EngineError(f"cannot measure {target}: {error}") from error
    finally:
        client.close()
    counting = (
        "exactly"
        if words.exact
        else "one word counted as one token, because the server has no /tokenize"
    )
    return Report(
        galley=__version__,
        started=started.isoformat(timespec="seconds"),
        target=target,
        model=model,
        workload=workload_facts
        if workload.recordings or workload.lines
        else workload_facts | {"counted": counting},
        objective=plan.objective,
        price_per_hour=plan.price_per_hour,
        client=machine,
        points=points,
    )


def _report(on_progress: Progress, begin: int, name: str, position: int) -> None:
    on_progress(name, begin + position)


async def _point(
    client: Client,
    plan: Plan,
    requests: Iterator[Prepared],
    load: float,
    on_progress: Progress,
) -> Point:
    loop, size, answered = asyncio.get_running_loop(), plan.size(load), 0
    began = loop.time()
    name = f"{load:g} at once" if plan.kind == "concurrency" else f"{load:.3g}/s"
    by_time = plan.kind == "concurrency" and plan.requests is None

    def on_end() -> None:
        nonlocal answered
        answered += 1

    async def tick() -> None:
        while True:
            on_progress(name, min(size, int(loop.time() - began) if by_time else answered))
            await asyncio.sleep(_TICK)

    ticking = asyncio.create_task(tick())
    try:
        if plan.kind == "concurrency":
            run = await closed_loop(
                client,
                requests,
                int(load),
                count=plan.requests,
                seconds=plan.seconds,
                on_end=on_end,
            )
        else:
            run = await open_loop(client, requests, plan.arrivals(load), on_end)
    finally:
        ticking.cancel()
    on_progress(name, size)
    return summarize(
        run,
        kind=plan.kind,
        load=load,
        objective=plan.objective,
        price_per_hour=plan.price_per_hour,
    )


def checked(run: Run) -> Run:
    """Return a run. Raises EngineError if none of its requests succeeded."""
    first = run.samples[0]
    if all(sample.error for sample in run.samples):
        raise EngineError(f"every request failed: {first.error}: {first.detail}")
    return run


async def first_model(client: Client) -> str:
    """Return the first model that the server lists. Raises SettingsError if it lists none."""
    status, answer = await client.json("/v1/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        if status in (401, 403):
            raise SettingsError(
                f"the server requires an API key (GET /v1/models: {status}); set --api-key or the variable "
                "GALLEY_API_KEY"
            ) from None
        raise SettingsError(
            f"the server does not list its models (GET /v1/models: {status}); name one with --model"
        ) from None
