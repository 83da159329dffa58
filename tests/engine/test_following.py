"""Steps that are submitted before the tokens of the step before them are known."""

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.following import following_of
from galley.engine.loaders import load_engine
from galley.ops.batch import Batch
from galley.ops.executor import Executor, Submitted
from galley.ops.sampling import SamplingBatch, StepResult
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from tests.conftest import CheckpointMaker
from tests.thorough import examples

SETTINGS = EngineSettings(
    threads=1, kv_cache_tokens=256, max_batch_tokens=48, max_running=6, speculation="off"
)


class AheadExecutor:
    """Runs another executor's steps on a thread in order, as a device does, and takes them early."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._thread = ThreadPoolExecutor(1)
        self._steps: list[Submitted] = []
        self.followed = self.early = 0
        self.fails = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, batch: Batch, sampling: SamplingBatch) -> Submitted:
        return self._submit(batch, sampling, None)

    def follow(self, step: Submitted, batch: Batch, sampling: SamplingBatch) -> Submitted | None:
        assert self._steps == [step], "the step that is followed is the only one that runs"
        assert isinstance(step, Future)
        self.followed += 1
        self.early += not step.done()
        return self._submit(batch, sampling, step)

    def may_follow(self, step: Submitted) -> bool:
        return True

    def _submit(
        self, batch: Batch, sampling: SamplingBatch, before: "Future[StepResult] | None"
    ) -> Submitted:
        # The engine changes tables while the step runs.
        batch = msgspec.structs.replace(batch, tables=tuple(np.array(t) for t in batch.tables))

        def run() -> StepResult:
            own = batch
            if before is not None:
                drawn = [before.result().tokens[-1 - token] for token in batch.tokens]
                own = msgspec.structs.replace(batch, tokens=np.maximum(np.array(drawn), 0))
            if self.fails.is_set():
                raise MemoryError("the device has no memory left")
            return self._inner.collect(self._inner.submit(own, sampling))

        step = self._thread.submit(run)
        self._steps.append(step)
        return step

    def collect(self, step: Submitted) -> StepResult:
        assert isinstance(step, Future)
        assert self._steps.pop(0) is step
        try:
            result: StepResult = step.result()
        except MemoryError:
            self._steps.clear()
            raise
        return result

    def close(self) -> None:
        self._thread.shutdown()


def engine_of(checkpoint: CheckpointMaker, variant: str = "llama", **changes: Any) -> Engine:
    engine = load_engine(dataclasses.replace(SETTINGS, **changes), checkpoint(variant))
    assert isinstance(engine, Engine)
    return engine


def ahead_of(engine: Engine, kind: type[AheadExecutor] = AheadExecutor) -> AheadExecutor:
    """Let the engine's steps run on a thread."""
    executor = kind(engine.executor)
    engine._executor = executor
    engine._following = following_of(
        executor, engine._scheduler, engine._speculation, engine._meter
    )
    return executor


@pytest.fixture
def pair(checkpoint: CheckpointMaker) -> Iterator[tuple[Engine, Engine, AheadExecutor]]:
    """An engine that completes each step before the next, and one that does not."""
    engines = engine_of(checkpoint), engine_of(checkpoint)
    executor = ahead_of(engines[1])
    yield *engines, executor
    executor.close()
    for engine in engines:
        engine.close()


class Arrival(msgspec.Struct, frozen=True):
    """A request: when it arrives, its sampling, and when it is aborted, in steps."""

    step: int
    prompt: int
    params: SamplingParams
    abort: int | None = None


def run(engine: Engine, arrivals: Sequence[Arrival]) -> dict[str, tuple[list[int], str | None]]:
    """Return each request's tokens, and why it ended."""
    got: dict[str, tuple[list[int], str | None]] = {}
    step = 0
    while engine.has_work or any(one.step >= step for one in arrivals):
        for i, one in enumerate(arrivals):
            if one.step == step:
                prompt = [3 + (7 * k + i) % 90 for k in range(one.prompt)]
                [request] = expand(prompt, one.params, engine.info, request_id=f"r{i}")
                engine.add(request)
                got[request.id] = ([], None)
            if one.abort == step:
                engine.abort([f"r{i}-0"])
        for output in engine.step() if engine.has_work else []:
            tokens, _ = got[output.request_id]
            got[output.request_id] = [*tokens, *output.tokens], output.finish_reason
        engine.check_blocks()
        step += 1
    return got


def params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.9, "seed": 5, "max_tokens": 12, **given})


def test_texts_are_the_same_and_steps_are_submitted_early(
    pair: tuple[Engine, Engine, AheadExecutor],
) -> None:
    at_once, ahead, executor = pair
    arrivals = [Arrival(0, 5, params(max_tokens=40)), Arrival(2, 17, params(temperature=0.0))]
    wanted = run(at_once, arrivals)
    assert run(ahead, arrivals) == wanted
    assert executor.followed > 30
    assert executor.early
    # What the texts filled can be shared, as without steps that follow.
    assert ahead.stats.kv_cached_blocks == at_once.stats.kv_cached_blocks > 2
    assert ahead.stats.decode_tokens == at_once.stats.decode_tokens
    assert ahead.stats.prefill_tokens == at_once.stats.prefill_tokens


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 12),
        prompt=st.integers(1, 60),
        params=st.builds(
            params,
            temperature=st.sampled_from([0.0, 0.9]),
            seed=st.integers(0, 3),
            max_tokens=st.integers(1, 30),
            stop_token_ids=st.lists(st.integers(0, 99), max_size=20),
            presence_penalty=st.sampled_from([0.0, 0.0, 0.0, 0.5]),
            logprobs=st.sampled_from([None, None, None, 1]),
        ),
        abort=st.none(),
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("variant", ["llama", "mistral-window"])
def test_any_requests_get_the_same_texts(variant: str, checkpoint: CheckpointMaker) -> None:
    """Requests arrive, end by a stop token and are preempted while a step runs."""
    at_once, ahead = (engine_of(checkpoint, variant) for _ in range(2))
    executor = ahead_of(ahead)

    @given(ARRIVALS)
    @settings(
        max_examples=examples(60),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    def check(arrivals: list[Arrival]) -> None:
        wanted = run(at_once, arrivals)
        assert run(ahead, arrivals) == wanted
        assert all(reason is not None for _, reason in wanted.values())

    check()
    assert executor.followed
    executor.close()


@given(data=st.data())
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_others_do_not_notice_an_abort(
    data: st.DataObject, pair: tuple[Engine, Engine, AheadExecutor]
) -> None:
    at_once, ahead, _ = pair
    arrivals = data.draw(ARRIVALS)
    ended = data.draw(st.integers(0, len(arrivals) - 1))
    gone = msgspec.structs.replace(
        arrivals[ended], abort=arrivals[ended].step + data.draw(st.integers(1, 9))
    )
    wanted = run(at_once, arrivals)
    got = run(ahead, [gone if i == ended else one for i, one in enumerate(arrivals)])
    for request, text in wanted.items():
        if request != f"r{ended}-0":
            assert got[request] == text


def test_a_step_that_fails_takes_the_next_one_with_it(
    pair: tuple[Engine, Engine, AheadExecutor],
) -> None:
    at_once, ahead, executor = pair
    arrivals = [Arrival(0, 5, params(max_tokens=30)), Arrival(0, 9, params(max_tokens=20))]
    wanted = run(at_once, arrivals)
    texts: dict[str, list[int]] = {}
    for i, one in enumerate(arrivals):
        prompt = [3 + (7 * k + i) % 90 for k in range(one.prompt)]
        ahead.add(expand(prompt, one.params, ahead.info, request_id=f"r{i}")[0])
    steps = 0
    while ahead.has_work:
        steps += 1
        if steps == 8:
            executor.fails.set()
        try:
            outputs = ahead.step()
        except MemoryError:
            executor.fails.clear()
            ahead.check_blocks()
            continue
        for output in outputs:
            texts.setdefault(output.request_id, []).extend(output.tokens)
    assert not executor.fails.is_set()
    assert texts == {request: tokens for request, (tokens, _) in wanted.items()}


def test_a_request_that_waits_for_a_seat_gets_the_first_one(
    pair: tuple[Engine, Engine, AheadExecutor],
) -> None:
    """Six sequences run; the seventh must not wait for a step more than the running one."""
    _, ahead, _ = pair
    lengths = [4, 30, 30, 30, 30, 30, 30]
    for i, length in enumerate(lengths):
        ahead.add(expand([5, 6, 7 + i], params(max_tokens=length, ignore_eos=True), ahead.info,
                         request_id=f"r{i}")[0])  # fmt: skip
    ended = first = step = 0
    while not first:
        step += 1
        for output in ahead.step():
            if output.request_id == "r0-0" and output.finish_reason:
                ended = step
            if output.request_id == "r6-0":
                first = step
    assert first - ended <= 2


class DrawingOnHost(AheadExecutor):
    """Does not know the tokens of a step before it is collected."""

    def follow(self, step: Submitted, batch: Batch, sampling: SamplingBatch) -> Submitted | None:
        self.followed += 1
        return None


def test_tenants_are_charged_once_for_a_step_that_could_not_follow(
    checkpoint: CheckpointMaker,
) -> None:
    engines = engine_of(checkpoint), engine_of(checkpoint)
    executor = ahead_of(engines[1], DrawingOnHost)
    charged = []
    for engine in engines:
        for tenant in ("a", "b"):
            [request] = expand([5, 6], params(ignore_eos=True), engine.info, request_id=tenant)
            engine.add(msgspec.structs.replace(request, tenant=tenant))
        for _ in range(8):
            engine.step()
        charged.append([tenant.time for tenant in engine._scheduler._fair._active.values()])
        engine.close()
    executor.close()
    assert executor.followed
    assert charged[0] == charged[1]


def test_a_prompt_that_is_not_in_a_step_continues_in_the_next(
    pair: tuple[Engine, Engine, AheadExecutor],
) -> None:
    """Two tenants' prompts take turns; the step that ends the first one has no room for the second."""
    _, ahead, _ = pair
    for tenant, begin in (("a", 5), ("b", 6)):
        prompt = [begin + (3 * i) % 80 for i in range(96)]
        made = expand(prompt, params(max_tokens=40, ignore_eos=True), ahead.info, request_id=tenant)
        ahead.add(msgspec.structs.replace(made[0], tenant=tenant))
    steps = 1
    while not any(one.request_id == "b-0" for one in ahead.step()):
        steps += 1
    assert steps <= 5


def test_steps_follow_while_tenants_that_have_their_shares_wait(
    pair: tuple[Engine, Engine, AheadExecutor],
) -> None:
    _, ahead, executor = pair
    for i in range(8):
        chosen = params(max_tokens=20, ignore_eos=True)
        [request] = expand([5, 6, 7 + i], chosen, ahead.info, request_id=f"r{i}")
        ahead.add(msgspec.structs.replace(request, tenant="ab"[i % 2]))
    for _ in range(10):
        assert not any(output.finish_reason for output in ahead.step())
    assert ahead.stats.waiting == 2
    assert executor.followed > 5
