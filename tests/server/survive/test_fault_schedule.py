"""A short run of the fault schedule: engines die and stall, clients misbehave, and no request is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults.run import run
from benchmarks.faults.schedule import asks, faults, prompts

from tests.server.conftest import with_defaults
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_fault_schedule")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A separate server: its engines are killed."""
    with with_defaults(model, tmp_path_factory.mktemp("fault_schedule")) as running:
        yield running


SECONDS = 12.0


def seed_with_kills(least: int) -> int:
    """Return the first seed whose short schedule has this many kills."""
    return next(
        seed
        for seed in range(1000)
        if sum(fault.kind == "kill" for fault in faults(seed, SECONDS)) >= least
        and all(fault.kind != "long stall" for fault in faults(seed, SECONDS))
    )


def test_every_request_ends_complete_and_correct_or_refused(server: Server) -> None:
    seed = seed_with_kills(2)
    options: dict[str, Any] = {
        "seed": seed,
        "seconds": SECONDS,
        "clients": 8,
        "warm_up": 3.0,
        "texts": 12,
    }
    result = asyncio.run(run(server.url, server.process.pid, **options))
    assert result.record.lost == []
    assert result.leaked_blocks == 0
    assert result.restarts >= 2
    assert result.record.resumed >= 1
    assert result.record.compared >= 20
    assert result.injected.total() == len(faults(seed, SECONDS)) + sum(
        result.injected[kind] for kind in ("disconnect", "slow reader", "bad request")
    )
    assert result.record.outcomes["refused as bad"] > 0


def test_a_seed_gives_the_same_run_again() -> None:
    assert faults(7, 600) == faults(7, 600) != faults(8, 600)
    assert prompts(7, 40, 200) == prompts(7, 40, 200)
    clients = [asks(7, number, 40, longest_pause=40.0) for number in (3, 3, 4)]
    first, again, other = ([next(client) for _ in range(50)] for client in clients)
    assert first == again != other
    kinds = {fault.kind for fault in faults(7, 600)}
    assert kinds == {"kill", "stall", "long stall"}
    assert max(fault.at for fault in faults(7, 600)) < 540
