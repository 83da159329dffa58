"""When waiting sequences may start: in any step, or only after a batch has finished."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.engine.batching import BatchGatherer
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.sequence import Sequence
from galley.settings.engine import Batching, EngineSettings
from galley.types import EngineRequest, Generate
from tests.conftest import CheckpointMaker
from tests.engine.machine import PARAMS

SEATS = 4


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Run:
    """An engine, and which requests got tokens in each step."""

    engine: Engine
    steps: list[set[str]] = field(default_factory=list)

    def add(self, name: str, tokens: int) -> None:
        sampling = msgspec.structs.replace(PARAMS, max_tokens=tokens, ignore_eos=True)
        self.engine.add(
            EngineRequest(id=name, payload=Generate(prompt=[5, 6, 7], sampling=sampling))
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if self.engine.has_work:
                self.steps.append({output.request_id for output in self.engine.step()})


def run(checkpoint: CheckpointMaker, batching: Batching, delay: float = 0.0) -> Run:
    settings = EngineSettings(
        kv_cache_tokens=1024, max_running=SEATS, batching=batching, batching_delay=delay
    )
    return Run(load_engine(settings, checkpoint("llama")))


def test_continuous_batching_lets_a_newcomer_join(checkpoint: CheckpointMaker) -> None:
    machine = run(checkpoint, "continuous")
    machine.add("long", 8)
    machine.step(2)
    machine.add("late", 2)
    machine.step()
    assert machine.steps[-1] == {"long", "late"}


@pytest.mark.parametrize("batching", ["dynamic", "static"])
def test_a_batch_begins_when_the_previous_one_has_ended(
    checkpoint: CheckpointMaker, batching: Batching
) -> None:
    machine = run(checkpoint, batching)
    machine.add("long", 8)
    machine.add("short", 2)
    machine.step(2)
    machine.add("late", 2)
    machine.step(20)
    assert machine.steps == [{"long", "short"}] * 2 + [{"long"}] * 6 + [{"late"}] * 2


def test_a_static_batch_waits_to_be_full(checkpoint: CheckpointMaker) -> None:
    machine = run(checkpoint, "static", delay=3600)
    for i in range(SEATS - 1):
        machine.add(f"r{i}", 1)
    machine.step(3)
    assert machine.steps == [set()] * 3
    assert machine.engine.stats.waiting == SEATS - 1
    machine.add("last", 1)
    machine.step(3)
    assert machine.steps[3:] == [{"r0", "r1", "r2", "last"}]


def test_one_that_is_aborted_while_it_waits_is_removed(checkpoint: CheckpointMaker) -> None:
    machine = run(checkpoint, "static", delay=3600)
    for i in range(SEATS):
        machine.add(f"r{i}", 1)
    machine.engine.abort(["r1"])
    machine.step()
    assert machine.steps == [set()]
    machine.engine.abort(["r0", "r2", "r3"])
    assert not machine.engine.has_work
    machine.engine.check_blocks()


@given(
    arrivals=st.lists(st.integers(0, 10), max_size=30).map(sorted),
    delay=st.integers(0, 5),
    seats=st.integers(1, 6),
)
def test_batches_keep_the_order_and_nobody_waits_longer_than_the_delay(
    arrivals: list[int], delay: int, seats: int
) -> None:
    clock = Clock()
    gatherer = BatchGatherer(seats, delay, clock)
    begun: list[Sequence] = []
    sequences = [
        Sequence(
            EngineRequest(id=str(i), payload=Generate(prompt=[1], sampling=PARAMS)),
            order=i,
            arrival=arrival,
        )
        for i, arrival in enumerate(arrivals)
    ]
    for sequence in sequences:
        clock.now = sequence.arrival
        gatherer.add(sequence)
        begun += gatherer.next_batch()
    clock.now += delay
    while len(gatherer):
        batch = gatherer.next_batch()
        assert 0 < len(batch) <= seats
        begun += batch
    assert begun == sequences
