"""Load generators: an open loop, with send times set in advance, and a closed loop of fixed concurrency."""

import asyncio
import contextlib
import gc
import os
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from galley.bench.serve.alarm import Alarm
from galley.bench.serve.answers import AnswerReader
from galley.bench.serve.client import CallFailed, Client
from galley.bench.serve.samples import Sample
from galley.bench.serve.workload import Prepared

_DELAY_EVERY: Final = 0.01  # seconds between checks of the event loop's own delay


@dataclass(frozen=True, slots=True)
class Run:
    """A run and how well the client kept up.

    Attributes:
        samples: one for every request.
        delays: by how many seconds the event loop was late for a timer, every 10 ms.
    """

    samples: Sequence[Sample]
    delays: "array[float]"


async def open_loop(
    client: Client,
    requests: Iterator[Prepared],
    times: Sequence[float],
    on_end: Callable[[], None] = lambda: None,
    *,
    after: Sequence[tuple[int, float] | None] = (),
) -> Run:
    """Send a request at each of ``times``, whatever became of earlier ones, unless it follows one.

    Args:
        client: client of the server.
        requests: one is taken for each time, all before the first is sent.
        times: seconds since the start, ascending.
        on_end: called at the end of each request.
        after: for each request, the index of an earlier one and the seconds from its end, before which
            it is not sent; None, or an empty sequence: it waits for none.
    """
    prepared = [next(requests) for _ in times]
    loop = asyncio.get_running_loop()
    async with _quiet(), _delays() as delays, asyncio.TaskGroup() as group:
        began = loop.time() + _DELAY_EVERY
        tasks: list[asyncio.Task[Sample]] = []
        waits = after or [None] * len(prepared)
        with Alarm() as alarm:
            for time, request, wait in zip(times, prepared, waits, strict=True):
                due = began + time
                await alarm.wait_until(due)
                if wait is None:
                    sent = _one(client, request, due, on_end)
                else:
                    sent = _after(tasks[wait[0]], wait[1], due, client, request, on_end)
                tasks.append(group.create_task(sent))
        samples = [await task for task in tasks]
    return Run(samples, delays)


async def closed_loop(
    client: Client,
    requests: Iterator[Prepared],
    concurrency: int,
    *,
    count: int | None = None,
    seconds: float | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> Run:
    """Keep ``concurrency`` requests in flight: when one ends, the next starts.

    Args:
        client: client of the server.
        requests: taken one by one.
        concurrency: how many at a time.
        count: total number; None: unlimited.
        seconds: none is started later than this.
        on_end: called at the end of each request.

    One of ``count`` and ``seconds`` must be given.
    """
    assert count is not None or seconds is not None
    if count is not None:
        requests = iter([next(requests) for _ in range(count)])
    loop = asyncio.get_running_loop()
    samples: list[Sample] = []

    async with _quiet(), _delays() as delays:
        end = float("inf") if seconds is None else loop.time() + seconds

        async def lane() -> None:
            due = loop.time()
            while due < end and (request := next(requests, None)) is not None:
                sample = await _one(client, request, due, on_end)
                samples.append(sample)
                due = sample.ended

        await asyncio.gather(*(lane() for _ in range(concurrency)))
    return Run(samples, delays)


async def _after(
    earlier: asyncio.Task[Sample],
    pause: float,
    due: float,
    client: Client,
    request: Prepared,
    on_end: Callable[[], None],
) -> Sample:
    """Send a request at ``due``, but not before ``pause`` seconds after an earlier one has ended."""
    due = max(due, (await asyncio.shield(earlier)).ended + pause)
    await asyncio.sleep(due - asyncio.get_running_loop().time())
    return await _one(client, request, due, on_end)


async def _one(client: Client, request: Prepared, due: float, on_end: Callable[[], None]) -> Sample:
    loop = asyncio.get_running_loop()
    sample = Sample(due)
    reader = AnswerReader(sample, streamed=request.streamed)
    sample.started = loop.time()
    try:
        await client.post(request.path, request.content, request.content_type, reader)
        sample.ended = loop.time()
        reader.ended()
    except CallFailed as error:
        sample.ended = loop.time()
        if (
            not reader.done
        ):  # otherwise the stream is complete, and the connection was closed afterwards
            sample.error, sample.detail = error.kind, error.detail
        else:
            reader.ended()
    on_end()
    return sample


@contextlib.asynccontextmanager
async def _quiet() -> AsyncIterator[None]:
    """Avoid pauses of the client, such as garbage collection, inside the ``with``."""
    gc.collect()
    gc.disable()
    try:
        with _raised_priority():
            yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _raised_priority() -> Iterator[None]:
    """Run this thread as soon as it is ready (sched(7), SCHED_RR), where the user and the system allow it.

    Next to a server on the same cores, a lower niceness is not enough: a running thread keeps the core for
    milliseconds.
    """
    if not hasattr(os, "sched_setscheduler"):  # macOS
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, *before)


@contextlib.asynccontextmanager
async def _delays() -> "AsyncIterator[array[float]]":
    delays = array("d")
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            due = loop.time() + _DELAY_EVERY
            await asyncio.sleep(_DELAY_EVERY)
            delays.append(max(0.0, loop.time() - due))

    task = asyncio.create_task(watch())
    try:
        yield delays
    finally:
        task.cancel()
