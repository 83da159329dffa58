"""The client of ``galley bench serve`` with servers that answer correctly, badly, late or not at all."""

import asyncio
import itertools
import os
import sys

import pytest

from galley.bench.serve.client import Client
from galley.bench.serve.load import Run, closed_loop, open_loop
from galley.bench.serve.workload import Prepared
from galley.errors import SettingsError
from tests.bench.scripted import DONE, HEAD, Script, event, part, piece, scripted

STREAM = Prepared("/v1/chat/completions", b"{}", "application/json", True)
USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 5})
ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
GOOD: Script = [HEAD, ROLE, piece("one"), piece("two"), USAGE, DONE]


def ask(*scripts: Script, count: int = 1, concurrency: int = 1, timeout: float = 30) -> Run:
    async def run() -> Run:
        async with scripted(*scripts) as url:
            client = Client(url, timeout=timeout)
            try:
                return await closed_loop(client, itertools.repeat(STREAM), concurrency, count=count)
            finally:
                client.close()

    return asyncio.run(run())


def test_times_are_those_of_the_text_and_tokens_those_of_the_usage() -> None:
    script: Script = [
        HEAD,
        ROLE,
        0.3,
        piece("a"),
        0.2,
        piece("b"),
        0.2,
        piece("c"),
        USAGE,
        0.1,
        DONE,
    ]
    [sample] = ask(script).samples
    assert sample.error == ""
    assert (sample.prompt_tokens, sample.output_tokens, sample.counted) == (7, 5, True)
    assert sample.ttft is not None
    assert sample.tpot is not None
    # The event with the role arrived at once and has no text. A slow machine can only be later.
    assert 0.3 <= sample.ttft < 2
    assert 0.4 / 4 <= sample.tpot < 2
    assert [b - a >= 0.19 for a, b in itertools.pairwise(sample.chunks)] == [True, True]
    assert sample.latency >= 0.8


def test_events_may_come_in_pieces_and_several_at_once() -> None:
    body = b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: {"choices":[{"text":"b"}]}\n\n: hi\n\n'
    pieces = [part(bytes([byte])) for byte in body]
    [sample] = ask([HEAD, *pieces, DONE]).samples
    assert sample.error == ""
    assert len(sample.chunks) == 2
    assert (sample.output_tokens, sample.counted) == (2, False)


@pytest.mark.parametrize(
    ("script", "error", "detail"),
    [
        ([b"HTTP/1.1 429 No\r\nContent-Length: 4\r\n\r\nbusy"], "http 429", "busy"),
        ([HEAD, piece("a"), part(b"")], "stream without end", ""),
        ([HEAD, DONE], "no text", "ended without text"),
        ([HEAD, event(error={"message": "broke"}), DONE], "error in the stream", "broke"),
        ([HEAD, part(b"data: {oh\n\n"), DONE], "unreadable answer", "{oh"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "no HTTP", ""),
        ([HEAD, piece("a"), 0.0], "connection lost", ""),
        ([HEAD, 60.0], "timeout", "0.5 s"),
    ],
)
def test_errors_have_kinds(script: Script, error: str, detail: str) -> None:
    [sample] = ask(script, timeout=0.5).samples
    assert sample.error == error
    assert detail in sample.detail


def test_a_server_that_is_not_there_is_an_error() -> None:
    async def run() -> Run:
        async with scripted(GOOD) as url:
            pass
        return await closed_loop(Client(url), itertools.repeat(STREAM), 1, count=1)

    assert asyncio.run(run()).samples[0].error == "connect"


def test_a_lost_connection_is_opened_again_and_a_kept_one_used_again() -> None:
    lost: Script = [HEAD, piece("a"), 0.0]
    samples = ask(GOOD, lost, GOOD, count=4).samples
    assert [sample.error for sample in samples] == ["", "connection lost", "", ""]


def test_a_closed_loop_never_has_more_requests_than_it_should_and_ends_in_time() -> None:
    run = ask([HEAD, 0.05, *GOOD[1:]], count=12, concurrency=3)
    assert len(run.samples) == 12
    for sample in run.samples:
        others = [s for s in run.samples if s.started <= sample.started < s.ended]
        assert len(others) <= 3

    async def by_time() -> Run:
        async with scripted([HEAD, 0.05, *GOOD[1:]]) as url:
            return await closed_loop(Client(url), itertools.repeat(STREAM), 2, seconds=0.3)

    samples = asyncio.run(by_time()).samples
    first = min(sample.started for sample in samples)
    assert len(samples) >= 2
    assert max(sample.started for sample in samples) - first <= 0.3


def test_an_open_loop_waits_for_no_answer_and_says_how_late_it_was() -> None:
    times = [0.0, 0.05, 0.05, 0.3]

    async def run() -> Run:
        async with scripted([HEAD, 0.5, *GOOD[1:]]) as url:
            return await open_loop(Client(url), itertools.repeat(STREAM), times)

    result = asyncio.run(run())
    due = [sample.due for sample in result.samples]
    assert [time - due[0] for time in due] == pytest.approx(times)
    assert all(sample.started - sample.due >= 0 for sample in result.samples)
    assert result.samples[-1].started < result.samples[0].ended
    assert len(result.delays) > 10


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://host:port", "http://host:99999", "http://[::1"]
)
def test_a_url_must_be_one(url: str) -> None:
    with pytest.raises(SettingsError, match="is not a URL"):
        Client(url)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such priority")
def test_the_client_runs_before_others_while_it_sends_and_not_afterwards() -> None:
    def policies() -> list[int]:
        seen: list[int] = []

        async def run() -> None:
            async with scripted(GOOD) as url:
                client = Client(url)
                requests = itertools.repeat(STREAM)
                await closed_loop(
                    client,
                    requests,
                    1,
                    count=1,
                    on_end=lambda: seen.append(os.sched_getscheduler(0)),
                )
                client.close()

        asyncio.run(run())
        return seen

    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(0, before, os.sched_param(0))
    except PermissionError:
        assert policies() == [before]
    else:
        assert policies() == [os.SCHED_RR]
    assert os.sched_getscheduler(0) == before
