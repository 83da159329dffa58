"""Overload: which requests wait, which are refused, and how soon."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import CONTEXT
from tests.server.refusals import error_of
from tests.server.serving import Server, events, until

pytestmark = pytest.mark.xdist_group("server_operation_overload")

PLAIN = "/v1/completions"
SEATS, QUEUE = 2, 6
BODY: dict[str, Any] = {"model": "tiny", "prompt": "the cat", "ignore_eos": True}
WITHIN = "x-request-timeout"


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two slots, one of which the neighbor uses."""
    log = tmp_path_factory.mktemp("overload") / "log"
    limits: dict[str, Any] = {"max_running": SEATS, "max_queue": QUEUE}
    with Server(model, log, threads=1, kv_cache_tokens=8 * CONTEXT, **limits) as running:
        yield running


def asking(server: Server, tokens: int, **headers: str) -> httpx.Response:
    with server.client() as client:
        return client.post(PLAIN, json=BODY | {"max_tokens": tokens}, headers=headers)


def burst(server: Server, count: int, tokens: int) -> list[tuple[httpx.Response, float]]:
    """Send ``count`` requests at once; return the answers and the seconds each took."""

    def timed(_: int) -> tuple[httpx.Response, float]:
        began = time.monotonic()
        answer = asking(server, tokens)
        return answer, time.monotonic() - began

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(timed, range(count)))


def idle(server: Server) -> bool:
    metrics = server.metrics()
    return not (metrics["galley_requests_running"] or metrics["galley_requests_waiting"])


def idle_but_for_the_neighbor(server: Server) -> bool:
    metrics = server.metrics()
    return metrics["galley_requests_running"] <= 1 and not metrics["galley_requests_waiting"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_passes_in_the_queue_is_504(server: Server, stream: bool) -> None:
    """Nothing has finished yet, so no request can be predicted to be late."""
    long = BODY | {"max_tokens": 15_000, "stream": True}
    with server.client() as client:
        blockers = [
            client.send(client.build_request("POST", PLAIN, json=long), stream=True)
            for _ in range(SEATS)
        ]
        try:
            reading = [events(blocker) for blocker in blockers]
            assert all(next(texts) for texts in reading)
            computed = server.metrics()["galley_queue_seconds_count{endpoint=/v1/completions}"]
            began = time.monotonic()
            late = BODY | {"max_tokens": 5, "stream": stream}
            answer = client.post(PLAIN, json=late, headers={WITHIN: "0.5"})
            assert time.monotonic() - began < 5
            last = list(events(answer))[-1] if stream else None
            error = json.loads(last)["error"] if last else error_of(answer, 504)
            assert error["code"] == "deadline_exceeded"
            assert "in the queue" in error["message"]
            until(lambda: server.metrics()["galley_requests_waiting"] <= 1)
            after = server.metrics()["galley_queue_seconds_count{endpoint=/v1/completions}"]
            assert after == computed
        finally:
            for blocker in blockers:
                blocker.close()
    until(lambda: idle_but_for_the_neighbor(server))


def test_requests_that_would_miss_their_deadline_are_refused_at_once(server: Server) -> None:
    burst(server, SEATS + QUEUE, tokens=2000)  # busy for more than a second: the pace is known
    until(lambda: idle_but_for_the_neighbor(server))
    long = BODY | {"max_tokens": 15_000, "stream": True}
    with server.client() as client, ExitStack() as patient:
        for _ in range(QUEUE):
            request = client.build_request("POST", PLAIN, json=long)
            patient.callback(client.send(request, stream=True).close)
        for _ in range(20):
            body = BODY | {"max_tokens": 300}
            answer = client.post(PLAIN, json=body, headers={WITHIN: "0.2"})
            error = error_of(answer, 429)  # 504 if it waited for its deadline
            assert "expected in" in error["message"]
            assert int(answer.headers["retry-after"]) >= 1
    until(lambda: idle_but_for_the_neighbor(server))


def test_a_full_queue_refuses_and_admitted_requests_continue(server: Server) -> None:
    answers = [answer for answer, _ in burst(server, SEATS + QUEUE + 8, tokens=300)]
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(served) >= QUEUE
    assert all(a.json()["usage"]["completion_tokens"] == 300 for a in served)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused
    for answer in refused:
        error = error_of(answer, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_burst_after_idling_gets_a_retry_time(server: Server) -> None:
    burst(server, SEATS + QUEUE, tokens=600)
    until(lambda: idle(server))
    time.sleep(8)  # ten times the burst's duration: idle time must not count
    began = time.monotonic()
    answers = burst(server, SEATS + QUEUE + 6, tokens=600)
    took = time.monotonic() - began
    delays = [int(a.headers["retry-after"]) for a, _ in answers if a.status_code == 429]
    assert delays
    assert max(delays) <= took + 1


def test_a_deadline_that_passes_while_running_ends_the_text(server: Server) -> None:
    error = error_of(asking(server, 15_000, **{WITHIN: "1.5"}), 504)
    assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
    with pytest.raises(openai.APIError) as raised:
        for _ in server.openai().completions.create(
            model="tiny",
            prompt="x",
            max_tokens=15_000,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers={WITHIN: "1.5"},
        ):
            pass
    assert raised.value.code == "deadline_exceeded"
    until(lambda: idle_but_for_the_neighbor(server))
    ended = server.metrics()
    assert ended["galley_finished_sequences_total{endpoint=/v1/completions,finish_reason=deadline}"]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1e9", "", "1_0", "1" * 5000])
def test_a_timeout_that_is_none_is_a_400(server: Server, value: str) -> None:
    error = error_of(asking(server, 1, **{WITHIN: value}))
    assert error["param"] == WITHIN
    assert len(error["message"]) < 200
