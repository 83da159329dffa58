"""Every moment of a busy engine is charged to exactly one request."""

import time

import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.service.requests import expand
from galley.settings.engine import EngineSettings, ExecutorName
from tests.conftest import CheckpointMaker


def add(engine: Engine, name: str, prompt: list[int], **params: float) -> None:
    sampling = SamplingParams(**{"max_tokens": 30, "ignore_eos": True, **params})  # type: ignore[arg-type]
    for request in expand(prompt, sampling, engine.info, request_id=name):
        engine.add(request)


def bills(engine: Engine) -> dict[str, float]:
    """Run to the end; return the share of each request."""
    shares: dict[str, float] = {}
    while engine.has_work:
        shares |= step(engine)
    return shares


def step(engine: Engine) -> dict[str, float]:
    """Return the share of each request that ends with the step."""
    shares = {}
    for output in engine.step():
        if output.finish_reason is not None:
            assert output.timing is not None
            shares[output.request_id] = output.timing.engine_seconds
    return shares


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_shares_add_up_to_the_time(executor: ExecutorName, checkpoint: CheckpointMaker) -> None:
    """With preemptions, choices, beams and a prompt in chunks."""
    settings = EngineSettings(
        executor=executor, threads=1, kv_cache_tokens=256, max_batch_tokens=32, max_running=8
    )
    engine = load_engine(settings, checkpoint("llama"))
    began = time.perf_counter()
    add(engine, "long", [5] * 100)
    awake = time.perf_counter()
    add(engine, "choices", [6, 7, 8] * 4, n=4, temperature=1.0)
    add(engine, "beams", [9] * 20, num_beams=3, temperature=0.0, max_tokens=10)
    shares: dict[str, float] = {}
    while engine.has_work:
        last = time.perf_counter()
        shares |= step(engine)
    took = time.perf_counter() - began
    stats = engine.stats
    assert len(shares) == 6
    assert min(shares.values()) > 0
    assert sum(shares.values()) == pytest.approx(stats.busy_seconds, rel=1e-9)
    # The last step's results belong to no request; the rest is everything.
    assert last - awake < stats.busy_seconds <= took
    parts = (stats.schedule_seconds, stats.forward_seconds, stats.emit_seconds)
    assert sum(parts) <= took
    assert 0 < stats.sample_seconds < stats.forward_seconds


def test_idle_time_is_on_no_receipt(checkpoint: CheckpointMaker) -> None:
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=256), checkpoint("llama"))
    add(engine, "first", [5] * 10, max_tokens=1)
    bills(engine)
    add(engine, "aborted", [5] * 10)
    engine.step()
    engine.abort(["aborted-0"])
    before = engine.stats.busy_seconds
    time.sleep(0.1)
    began = time.perf_counter()
    add(engine, "last", [5] * 10, max_tokens=1)
    shares = bills(engine)
    took = time.perf_counter() - began
    assert shares["last-0"] == pytest.approx(engine.stats.busy_seconds - before)
    assert shares["last-0"] <= took


def test_a_longer_prompt_pays_more(checkpoint: CheckpointMaker) -> None:
    settings = EngineSettings(threads=1, kv_cache_tokens=512, prefix_cache=False)
    engine = load_engine(settings, checkpoint("llama"))
    add(engine, "short", [5] * 10, max_tokens=1)
    add(engine, "long", [6] * 100, max_tokens=1)
    shares = bills(engine)
    assert shares["long-0"] == pytest.approx(10 * shares["short-0"])
