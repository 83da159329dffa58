"""Steps that an executor finishes asynchronously: their results, and when the engine collects them."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.ops.batch import Batch
from galley.ops.executor import Executor, Submitted, forward
from galley.ops.sampling import SamplingBatch, StepResult
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from tests.conftest import CheckpointMaker

SETTINGS = EngineSettings(threads=1, kv_cache_tokens=1024, max_batch_tokens=48, max_running=8)
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True)


class LateExecutor:
    """Runs another executor's steps on a thread, one after another, once released."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._thread = ThreadPoolExecutor(1)
        self.open = threading.Event()
        self.submitted = threading.Event()
        self._order: deque[Submitted] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, batch: Batch, sampling: SamplingBatch) -> Submitted:
        def run() -> StepResult:
            self.open.wait()
            return self._inner.collect(self._inner.submit(batch, sampling))

        step = self._thread.submit(run)
        self._order.append(step)
        self.submitted.set()
        return step

    def collect(self, step: Submitted) -> StepResult:
        assert isinstance(step, Future)
        assert self._order.popleft() is step
        result: StepResult = step.result()
        return result

    def close(self) -> None:
        self.open.set()
        self._thread.shutdown()


@pytest.fixture
def late(checkpoint: CheckpointMaker) -> Iterator[tuple[Engine, LateExecutor]]:
    engine = load_engine(SETTINGS, checkpoint("llama"))
    assert isinstance(engine, Engine)
    executor = LateExecutor(engine.executor)
    engine._executor = executor
    yield engine, executor
    executor.close()
    engine.close()


def add(engine: Engine, lengths: Sequence[int]) -> None:
    for i, length in enumerate(lengths):
        prompt = list(range(3, 3 + length))
        engine.add(expand(prompt, PARAMS, engine.info, request_id=f"r{i}")[0])


def texts(engine: Engine, lengths: Sequence[int]) -> dict[str, list[int]]:
    add(engine, lengths)
    got: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.tokens)
    return got


@pytest.mark.parametrize("lengths", [(5,), (20, 60, 3)])
def test_texts_do_not_depend_on_when_steps_finish(
    late: tuple[Engine, LateExecutor], lengths: tuple[int, ...], checkpoint: CheckpointMaker
) -> None:
    engine, executor = late
    executor.open.set()
    at_once = load_engine(SETTINGS, checkpoint("llama"))
    assert isinstance(at_once, Engine)
    assert texts(engine, lengths) == texts(at_once, lengths)
    engine.check_blocks()


def test_nothing_is_committed_before_a_step_is_collected(
    late: tuple[Engine, LateExecutor],
) -> None:
    engine, executor = late
    add(engine, [5, 7])
    outputs: list[Any] = []
    stepping = threading.Thread(target=lambda: outputs.extend(engine.step()))
    stepping.start()
    assert executor.submitted.wait(60)
    sequences = list(engine._sequences.values())
    assert [(s.computed, len(s.tokens)) for s in sequences] == [(0, 5), (0, 7)]
    assert engine.stats.steps == 0
    assert stepping.is_alive()
    assert not outputs
    executor.open.set()
    stepping.join(60)
    assert [(s.computed, len(s.tokens)) for s in sequences] == [(5, 6), (7, 8)]
    assert sorted(output.request_id for output in outputs) == ["r0-0", "r1-0"]
    assert engine.stats.steps == 1


def test_a_step_may_be_submitted_while_another_runs(late: tuple[Engine, LateExecutor]) -> None:
    """The second half of a text reads keys and values that the step before it has yet to write."""
    engine, executor = late
    tokens = np.arange(3, 35)
    whole = forward(engine.executor._inner, _batch(tokens, 0, block=4)).copy()  # type: ignore[attr-defined]
    wanted = SamplingBatch(keep_logits=True)
    steps = [
        executor.submit(_batch(tokens[:20], 0, block=8), wanted),
        executor.submit(_batch(tokens[20:], 20, block=8), wanted),
    ]
    assert not any(isinstance(step, Future) and step.done() for step in steps)
    executor.open.set()
    last = [executor.collect(step) for step in steps][-1].logits
    assert last is not None
    assert np.array_equal(last, whole)


def _batch(tokens: Any, first: int, *, block: int) -> Batch:
    """Return one sequence in two blocks, with logits of its last row."""
    count = len(tokens)
    positions = np.arange(first, first + count)
    table = np.array([block, block + 1])
    return Batch(tokens, positions, np.array([0, count]), (table,), np.array([count - 1]))
