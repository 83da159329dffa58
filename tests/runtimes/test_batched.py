"""Which texts are in a batch of a library that computes batches from beginning to end."""

import queue
from collections.abc import Collection, Iterator

import pytest

from galley.runtimes.batched import BatchedRuntime, Job, News
from galley.runtimes.text_engine import TextEngine
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.model_info import ModelInfo, TextInfo

INFO = ModelInfo(
    name="m",
    path="",
    family="",
    tasks=("generate",),
    executor="",
    text=TextInfo(vocab_size=9, max_model_len=9, eos_token_ids=(0,)),
)


class Batches(BatchedRuntime[Generate]):
    """Computes a batch when the test says so, and records its texts."""

    def __init__(self) -> None:
        super().__init__(workers=1, most=2, kv_bytes=None)
        self.begun: queue.Queue[list[str]] = queue.Queue()
        self.may_end: queue.Queue[None] = queue.Queue()

    def job(self, request_id: str, payload: Generate, stop_ids: Collection[int]) -> Job[Generate]:
        return Job(request_id, payload, "all", len(payload.prompt), stop_ids, kv_bytes=1)

    def compute(self, batch: list[Job[Generate]]) -> None:
        self.begun.put([job.id for job in batch])
        self.may_end.get(timeout=30)
        for job in batch:
            self.report(News(job, [1], "length"))


@pytest.fixture
def runtime() -> Iterator[Batches]:
    runtime = Batches()
    yield runtime
    for _ in range(20):
        runtime.may_end.put(None)
    runtime.close()


def request(name: str, tenant: str, priority: int = 0) -> EngineRequest:
    payload = Generate(prompt=[1], sampling=SamplingParams(temperature=0, max_tokens=1))
    return EngineRequest(id=name, payload=payload, tenant=tenant, priority=priority)


def next_batch(engine: TextEngine[Generate], runtime: Batches) -> list[str]:
    while runtime.begun.empty():
        engine.step()
    return runtime.begun.get()


def test_tenants_and_priorities_decide_which_texts_the_next_batch_has(runtime: Batches) -> None:
    """Those that arrived first are not first while a batch runs: they wait in the engine's queue."""
    engine = TextEngine(runtime, INFO, max_running=8, priority_steps=100)
    engine.add(request("first", "many"))
    assert next_batch(engine, runtime) == ["first"]
    for number in range(6):
        engine.add(request(f"many{number}", "many"))
    engine.step()
    engine.add(request("few", "few"))
    engine.add(request("urgent", "many", priority=-1))
    assert engine.stats.waiting == 8
    batches = []
    for _ in range(3):
        runtime.may_end.put(None)
        batches.append(set(next_batch(engine, runtime)))
    assert batches == [{"urgent", "few"}, {"many0", "many1"}, {"many2", "many3"}]


def test_requests_that_end_at_once_do_not_hold_up_texts(runtime: Batches) -> None:
    engine = TextEngine(runtime, INFO, max_running=8, priority_steps=100)
    engine.add(request("text", ""))
    next_batch(engine, runtime)
    runtime.may_end.put(None)
    seen: list[str] = []
    for number in range(300):
        done = Generate(prompt=[1], output=[1], sampling=SamplingParams(max_tokens=1))
        engine.add(EngineRequest(id=f"done{number}", payload=done))
        seen += [output.request_id for output in engine.step()]
        assert seen[-1] == "text" or f"done{number}" in seen
        if "text" in seen:
            break
    assert "text" in seen
