"""Waiting until a given time."""

import asyncio
import os

import pytest

from galley.bench.serve.alarm import Alarm


@pytest.mark.parametrize("precise", [True, False])
def test_it_waits_until_then_and_not_for_the_past(
    precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernel's timer, and where there is none."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with Alarm() as alarm:
            assert (alarm._timer >= 0) or not precise
            for delay in (0.02, -1.0, 0.0, 0.003, 0.0001):
                due = loop.time() + delay
                await asyncio.wait_for(alarm.wait_until(due), 5)
                assert loop.time() >= due

    if not precise:
        monkeypatch.setattr(Alarm, "_CREATE", "no_such_function")
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before
