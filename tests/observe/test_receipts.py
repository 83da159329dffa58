"""The cost of requests on their receipts, in the metrics and on the clock."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import Server, events, until
from tests.thorough import examples

pytestmark = pytest.mark.xdist_group("observe_receipts")

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
PRICE = 3600.0  # a unit of the currency each second
BODY = {"model": "tiny", "prompt": "the cat sat", "max_tokens": 12, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose engine, rather than the server itself, limits the requests."""
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        "galley-demo",
        log,
        served_model_name="tiny",
        threads=1,
        kv_cache_tokens=16384,
        max_running=16,
        price_per_hour=PRICE,
    ) as running:
        yield running


def streamed(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}) as response:
        return [json.loads(data) for data in events(response) if data != "[DONE]"]


def idle(server: Server) -> dict[str, float]:
    """Return the metrics once nothing runs."""
    until(lambda: server.metrics()["galley_requests_running"] == 0)
    return server.metrics()


@pytest.mark.parametrize(
    ("path", "fields"), [(CHAT, {"messages": MESSAGES}), (PLAIN, {"prompt": "the cat"})]
)
def test_each_answer_has_its_receipt(server: Server, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "max_tokens": 8, "ignore_eos": True, **fields}
    began = time.monotonic()
    whole = httpx.post(server.url + path, json=body).json()["usage"]
    took = 1000 * (time.monotonic() - began)
    options = {"stream_options": {"include_usage": True}}
    *others, last = streamed(server, path, body | options)
    for usage in (whole, last["usage"]):
        assert usage["completion_tokens"] == 8
        assert usage["prefill_ms"] > 0
        assert usage["decode_ms"] > 0
        assert usage["cost"] > 0
    assert 0 <= whole["queue_ms"] <= whole["queue_ms"] + whole["prefill_ms"] <= took
    assert whole["queue_ms"] + whole["prefill_ms"] + whole["decode_ms"] <= took
    # One unit per second: no request costs more than its duration.
    assert whole["cost"] <= took / 1000
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []


def test_openais_client_reads_it(server: Server) -> None:
    answer = server.openai().completions.create(model="tiny", prompt="the cat", max_tokens=4)
    assert answer.usage is not None
    extra = answer.usage.model_extra or {}
    assert extra["cost"] > 0
    assert {"queue_ms", "prefill_ms", "decode_ms"} <= extra.keys()
    assert answer.usage.prompt_tokens_details is not None


def test_a_stop_string_ends_the_receipt_too(server: Server) -> None:
    text = httpx.post(server.url + PLAIN, json=BODY).json()["choices"][0]["text"]
    stop = {"stop": text[4:6], "seed": 1}
    usage = httpx.post(server.url + PLAIN, json=BODY | stop).json()["usage"]
    assert usage["prefill_ms"] > 0
    assert usage["cost"] > 0


def test_usage_may_come_with_each_chunk(server: Server) -> None:
    before = server.metrics().get("galley_inter_token_seconds_count", 0)
    for options in ({"include_usage": True}, {}):
        wanted = options | {"continuous_usage_stats": True}
        chunks = streamed(server, PLAIN, BODY | {"max_tokens": 400, "stream_options": wanted})
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 400
        assert len(set(counts)) > 2
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {
            chunks[0]["usage"]["prompt_tokens"]
        }
        assert (chunks[-1]["choices"] == []) is bool(options)
        assert ("decode_ms" in chunks[-1]["usage"]) is bool(options)
    assert server.metrics()["galley_inter_token_seconds_count"] - before > 2 * 2


def test_the_receipts_of_a_load_add_up_to_the_counters(server: Server) -> None:
    count = examples(1000)
    before = idle(server)
    receipts: list[dict[str, Any]] = []
    began = time.monotonic()
    asyncio.run(_load(server, receipts, requests=count, together=64))
    took = time.monotonic() - began
    after = idle(server)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0)

    def billed(name: str) -> float:
        return float(sum(receipt[name] for receipt in receipts))

    assert len(receipts) == count
    assert billed("completion_tokens") == gained("galley_generated_tokens_total")
    assert billed("prompt_tokens") == gained("galley_prompt_tokens_total")
    cached = sum(receipt["prompt_tokens_details"]["cached_tokens"] for receipt in receipts)
    assert cached == gained("galley_cached_prompt_tokens_total")
    for part in ("queue", "prefill", "decode"):
        wanted = gained(f"galley_{part}_seconds_sum{{endpoint={PLAIN}}}")
        assert billed(f"{part}_ms") / 1000 == pytest.approx(wanted, rel=1e-3, abs=1e-3)
        assert gained(f"galley_{part}_seconds_count{{endpoint={PLAIN}}}") == count
    assert billed("cost") == pytest.approx(gained("galley_cost_total"), rel=1e-6)
    assert billed("cost") == pytest.approx(gained("galley_tenant_cost_total{tenant=}"), rel=1e-6)
    # The engine's work never exceeds the elapsed time; how close it comes is tested below.
    assert billed("cost") <= took * 1.001


def test_at_saturation_the_bill_is_the_machines_price_times_its_time(server: Server) -> None:
    """The engine is busy from the first request's arrival to the last one's end: all of it is charged.

    The engine's own clock says how long that is: how late a client receives the answers is no part of it.
    """

    async def answered() -> tuple[list[dict[str, float]], float]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            await asyncio.gather(*(client.post(PLAIN, json=BODY) for _ in range(2)))
            body = BODY | {"n": 32, "max_tokens": 125}
            began = time.monotonic()
            answers = await asyncio.gather(*(client.post(PLAIN, json=body) for _ in range(2)))
            took = time.monotonic() - began
        return [answer.json()["usage"] for answer in answers], took

    receipts, took = asyncio.run(answered())
    cost = sum(receipt["cost"] for receipt in receipts)
    parts = ("queue_ms", "prefill_ms", "decode_ms")
    longest = max(sum(receipt[part] for part in parts) for receipt in receipts) / 1000
    assert 0.98 * PRICE / 3600 * longest < cost < PRICE / 3600 * took


async def _load(
    server: Server,
    receipts: list[dict[str, Any]],
    *,
    requests: int,
    together: int,
    tokens: int = 4,
) -> None:
    """Send requests at a given concurrency, and collect their receipts."""
    numbers = iter(range(requests))
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:

        async def work() -> None:
            for number in numbers:
                body = BODY | {"prompt": f"cat {number % 50} sat", "max_tokens": tokens}
                answer = await client.post(PLAIN, json=body)
                receipts.append(answer.json()["usage"])

        await asyncio.gather(*(work() for _ in range(together)))
