"""An engine that shares its cores: it pauses between two ops, and reports whether its work is live."""

from collections.abc import Callable
from typing import Literal

import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import LIVE_PRIORITY
from tests.conftest import CheckpointMaker

ExecutorName = Literal["cpu", "reference"]
TOKENS: dict[ExecutorName, int] = {"cpu": 400, "reference": 60}
"""Of many milliseconds."""
THREADS: dict[ExecutorName, int] = {"cpu": 2, "reference": 1}
"""torch's threads would wait for each other on cores that other tests have."""
EXECUTORS: list[ExecutorName] = ["cpu", "reference"]


def tokens(engine: Engine, count: int) -> list[int]:
    """Return a greedy continuation."""
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    [request] = expand(list(range(5, 90)), params, engine.info, request_id="r")
    engine.add(request)
    text: list[int] = []
    while engine.has_work:
        text += [token for output in engine.step() for token in output.tokens]
    return text


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_computed_does_not_depend_on_pauses(
    executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder, pauses = checkpoint("llama"), list[None]()
    settings = EngineSettings(
        executor=executor, threads=THREADS[executor], max_batch_tokens=64, kv_cache_tokens=512
    )
    through = load_engine(settings, folder)
    paused = load_engine(settings, folder, pause=lambda: pauses.append(None))
    assert tokens(paused, TOKENS[executor]) == tokens(through, TOKENS[executor])
    assert len(pauses) > 1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_pause_that_fails_ends_the_step(
    executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    fail: list[Callable[[], None]] = []

    def pause() -> None:
        for call in fail:
            call()

    def interrupt() -> None:
        raise InterruptedError("no more")

    engine = load_engine(
        EngineSettings(executor=executor, threads=THREADS[executor], kv_cache_tokens=512),
        checkpoint("llama"),
        pause=pause,
    )
    expected = tokens(engine, TOKENS[executor])
    fail.append(interrupt)
    with pytest.raises(InterruptedError, match="no more"):
        tokens(engine, TOKENS[executor])
    fail.clear()
    engine.abort(["r-0"])
    assert tokens(engine, TOKENS[executor]) == expected


def test_an_engine_is_live_while_it_has_live_audio(checkpoint: CheckpointMaker) -> None:
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=512), checkpoint("llama"))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    for name, priority in (("urgent", -100), ("live", LIVE_PRIORITY)):
        assert not engine.is_live
        engine.add(expand([5, 6], params, engine.info, request_id=name, priority=priority)[0])
    assert engine.is_live
    while engine.has_work:
        engine.step()
    assert not engine.is_live
