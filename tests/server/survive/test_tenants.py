"""Each limit of a tenant, through OpenAI's own client; the key file changes while streams run."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import CONTEXT
from tests.server.key_files import (
    KeyFile,
    bearer,
    complete,
    key_of,
    limits_of,
)
from tests.server.neighbor import Neighbor, alone
from tests.server.refusals import error_of
from tests.server.serving import Server, events, until

pytestmark = pytest.mark.xdist_group("server_tenants")

GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    return KeyFile(
        tmp_path_factory.mktemp("keys") / "keys",
        free={},
        few={"requests_per_minute": 3},
        thrifty={"tokens_per_minute": 600},
        careful={"tokens_per_minute": 15_000},
        debtor={"tokens_per_minute": 60, "max_context": 400},
        single={"concurrency": 1},
        short={"max_context": 64},
        boss={"admin": True, "weight": 2},
        leaver={},
        rotating={},
        heavy={},
        light={},
    )


@pytest.fixture(scope="module")
def server(
    model: Path, key_file: KeyFile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model,
        log,
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        max_running=4,
        stored_responses=8,
        api_key_file=key_file.path,
        admin_key="sk-operator",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: Server) -> str:
    with server.client(headers=bearer(key_of("free"))) as client:
        return alone(client)


@pytest.fixture(autouse=True)
def neighbor(server: Server, expected: str) -> Iterator[Neighbor]:
    with Neighbor(server, expected, **bearer(key_of("free"))) as running:
        yield running


def test_requests_per_minute(server: Server) -> None:
    client = server.openai(key_of("few")).completions.with_raw_response
    for left in (2, 1, 0):
        answer = client.create(model="tiny", prompt="a", max_tokens=1, stream=left == 1)
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        assert "x-ratelimit-limit-tokens" not in answer.headers
    with pytest.raises(openai.RateLimitError) as refused:
        client.create(model="tiny", prompt="a", max_tokens=1)
    assert (refused.value.type, refused.value.code) == ("requests", "rate_limit_exceeded")
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 20
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert "'few' may send 3 requests per minute" in refused.value.message
    samples = server.metrics(**bearer(key_of("free")))
    assert samples["galley_tenant_rate_limited_total{limit=requests,tenant=few}"] == 1
    assert samples["galley_tenant_requests_total{status=429,tenant=few}"] == 1


def test_tokens_per_minute(server: Server) -> None:
    def ask(max_tokens: int) -> Any:
        client = server.openai(key_of("thrifty")).completions.with_raw_response
        return client.create(model="tiny", prompt=[5] * 100, max_tokens=max_tokens, **GREEDY)

    first = ask(200)
    assert first.headers["x-ratelimit-limit-tokens"] == "600"
    assert 300 <= int(first.headers["x-ratelimit-remaining-tokens"]) < 400
    with pytest.raises(openai.RateLimitError) as refused:
        ask(490)
    assert (refused.value.type, refused.value.code) == ("tokens", "rate_limit_exceeded")
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 30
    with pytest.raises(openai.BadRequestError) as never:
        ask(501)
    assert (never.value.param, never.value.code) == ("max_tokens", "tokens_per_minute_exceeded")
    assert "need 601 tokens" in never.value.message
    assert "600 per minute" in never.value.message
    samples = server.metrics(**bearer(key_of("free")))
    assert samples["galley_tenant_tokens_total{kind=prompt,tenant=thrifty}"] == 100
    assert samples["galley_tenant_tokens_total{kind=generated,tenant=thrifty}"] == 200
    assert samples["galley_tenant_rate_limited_total{limit=tokens,tenant=thrifty}"] == 1


def test_unused_tokens_are_returned(server: Server) -> None:
    stream = server.openai(key_of("careful")).completions.create(
        model="tiny", prompt=[5] * 10, max_tokens=14_000, stream=True, **GREEDY
    )
    next(iter(stream))
    assert int(limits_of(server, "careful")["remaining-tokens"]) < 4000
    stream.close()
    until(lambda: int(limits_of(server, "careful")["remaining-tokens"]) > 10_000)


def test_tokens_of_a_text_without_max_tokens_count_as_they_come(server: Server) -> None:
    def ask() -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
        url = f"{server.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=bearer(key_of("debtor")), timeout=60)

    assert ask().json()["usage"]["total_tokens"] == 400
    refused = ask()
    assert error_of(refused, 429)["type"] == "tokens"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert 300 < int(refused.headers["retry-after"]) <= 360


def test_concurrency(server: Server) -> None:
    client = server.openai(key_of("single"))

    def ask() -> Any:
        return client.completions.create(
            model="tiny", prompt=[5], max_tokens=4000, stream=True, **GREEDY
        )

    stream = ask()
    with pytest.raises(openai.RateLimitError) as refused:
        ask()
    assert refused.value.code == "rate_limit_exceeded"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert "'single' is allowed 1 concurrent requests" in refused.value.message
    running = "galley_tenant_requests_running{tenant=single}"
    assert server.metrics(**bearer(key_of("free")))[running] == 1
    stream.close()
    until(lambda: server.metrics(**bearer(key_of("free")))[running] == 0)
    ask().close()


def test_context(server: Server) -> None:
    error = error_of(complete(server, "short", [5] * 60, max_tokens=5))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "max_tokens 5 and a prompt of 60 tokens" in error["message"]
    assert "64 tokens" in error["message"]
    error = error_of(complete(server, "short", [5] * 64))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert complete(server, "short", [5] * 60).json()["usage"]["total_tokens"] == 64
    assert complete(server, "free", [5] * 60, max_tokens=5).status_code == 200


def test_one_with_many_requests_does_not_delay_one_with_two(server: Server) -> None:
    with httpx.Client(base_url=server.url, headers=bearer(key_of("heavy"))) as client:
        body = {"model": "tiny", "prompt": [5] * 30, "n": 64, "max_tokens": 300, "stream": True}
        request = client.build_request(
            "POST", "/v1/completions", json=body | {"ignore_eos": True, "temperature": 0}
        )
        heavy = client.send(request, stream=True)
        received = events(heavy)
        next(received)
        for _ in range(2):
            assert complete(server, "light", [5] * 30, max_tokens=30).status_code == 200
        # 64 requests of the heavy tenant came first, for four slots; in arrival order all would end first.
        usage = httpx.get(f"{server.url}/admin/tenants", headers=bearer("sk-operator")).json()
        [state] = [tenant for tenant in usage["tenants"] if tenant["name"] == "heavy"]
        assert state["running"] == 1
        assert state["tokens"]["last_minute"] < 64 * 300 / 2
        heavy.close()


def test_the_key_file_changes_while_a_stream_runs(server: Server, key_file: KeyFile) -> None:
    def status(key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers=bearer(key)).status_code

    client = server.openai(key_of("leaver"))
    stream = client.completions.create(
        model="tiny", prompt=[5], max_tokens=1000, stream=True, **GREEDY
    )
    leaver = key_file.tenants.pop("leaver")
    key_file.tenants["comer"] = leaver | {"requests_per_minute": 10}
    key_file.write()
    until(lambda: status(key_of("comer")) == 200)
    assert status(key_of("leaver")) == 401
    assert limits_of(server, "comer")["limit-requests"] == "10"
    assert list(stream)[-1].choices[0].finish_reason == "length"

    key_file.path.write_text("tenants:\n  - name: comer\n    wieght: 2\n")
    server.process.send_signal(signal.SIGHUP)
    log = server.wait_for_log(r"ERROR .*the keys are unchanged: .*\n")[0]
    assert "line 2: tenant 'comer'" in log
    assert "`wieght`" in log
    assert status(key_of("comer")) == 200
    key_file.tenants["comer"]["requests_per_minute"] = 20
    key_file.write()
    until(lambda: limits_of(server, "comer")["limit-requests"] == "20")


def test_a_new_key_of_a_tenant_finds_its_cached_prefixes(server: Server, key_file: KeyFile) -> None:
    def cached(key: str) -> int:
        answer = server.openai(key).completions.create(model="tiny", prompt=[6] * 64, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    def accepted(key: str) -> bool:
        return httpx.get(f"{server.url}/v1/models", headers=bearer(key)).status_code == 200

    assert cached(key_of("rotating")) == 0
    key_file.tenants["rotating"]["keys"] = ["sk-rotating", "sk-rotated"]
    key_file.write()
    until(lambda: accepted("sk-rotated"))
    assert accepted("sk-rotating")
    key_file.tenants["rotating"]["keys"] = ["sk-rotated"]
    key_file.write()
    until(lambda: not accepted("sk-rotating"))
    assert cached("sk-rotated") > 0


@pytest.mark.parametrize("kind", ["pipe", "folder", "no keys"])
def test_keys_stay_when_their_file_becomes_something_else(
    server: Server, key_file: KeyFile, kind: str
) -> None:
    def accepted() -> bool:
        url = f"{server.url}/v1/models"
        return httpx.get(url, headers=bearer(key_of("free"))).status_code == 200

    log = len(server.log)
    key_file.path.unlink()
    if kind == "pipe":
        os.mkfifo(key_file.path)
    elif kind == "folder":
        key_file.path.mkdir()
    else:
        key_file.path.write_text("sk-free free\n")
    until(lambda: accepted() and "the keys are unchanged" in server.log[log:])
    server.process.send_signal(signal.SIGHUP)
    until(lambda: server.log[log:].count("the keys are unchanged") == 2)
    assert accepted()
    (key_file.path.rmdir if kind == "folder" else key_file.path.unlink)()
    key_file.write()
    until(lambda: accepted() and re.search(r"api_key_file .*: \d+ keys", server.log[log:]))
    assert server.log[log:].count("the keys are unchanged") <= 3  # once more without a file


def test_admin_routes_have_a_separate_key(server: Server) -> None:
    def ask(key: str | None) -> httpx.Response:
        return httpx.get(f"{server.url}/admin/tenants", headers=bearer(key) if key else {})

    error_of(ask(None), 401)
    error_of(ask("wrong"), 401)
    assert error_of(ask(key_of("free")), 403)["code"] == "admin_key_needed"
    error_of(httpx.post(f"{server.url}/admin/nothing", headers=bearer(key_of("free"))), 403)
    for key in ("sk-operator", key_of("boss")):
        tenants = {tenant["name"]: tenant for tenant in ask(key).json()["tenants"]}
        assert tenants["boss"]["weight"] == 2
        assert tenants["single"]["concurrency"] == 1
        assert tenants["free"]["requests"]["last_minute"] > 0
        assert tenants["thrifty"]["tokens"]["limit"] == 600
    # The operator's key is not valid for the API; only Prometheus may use it.
    assert httpx.get(f"{server.url}/v1/models", headers=bearer("sk-operator")).status_code == 401
    assert httpx.get(f"{server.url}/metrics", headers=bearer("sk-operator")).status_code == 200
    assert complete(server, "boss", [5], max_tokens=1).status_code == 200


def test_without_an_admin_key_the_admin_routes_are_off(model: Path, tmp_path: Path) -> None:
    with Server(model, tmp_path / "log", wait=False) as open_:
        error = error_of(httpx.get(f"{open_.url}/admin/tenants"), 403)
    assert error["code"] == "admin_disabled"
    assert "--admin-key" in error["message"]


def test_a_tenant_that_fills_all_slots_leaves_another_its_share(server: Server) -> None:
    """There are 260 places."""

    def ask_little() -> str:
        answer = complete(server, "light", [5, 6], max_tokens=4)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    expected = ask_little()
    with server.client(headers=bearer(key_of("heavy"))) as client:

        def fill(choices: int) -> httpx.Response:
            body = {"prompt": [5], "n": choices, "max_tokens": 4000, "ignore_eos": True}
            body |= {"model": "tiny", "stream": True}
            request = client.build_request("POST", "/v1/completions", json=body)
            return client.send(request, stream=True)

        filling = [fill(choices) for choices in (128, 128)]
        while filling[-1].status_code == 200:
            assert len(filling) < 10
            filling.append(fill(1))
        filling[-1].read()
        error = error_of(filling[-1], 429)
        assert error["code"] == "queue_full"
        assert (
            "260 sequences are running or waiting, and at most 260 are allowed" in error["message"]
        )
        assert [ask_little() for _ in range(4)] == [expected] * 4
        for answer in filling:
            answer.close()


def test_a_tenant_with_many_stored_responses_evicts_its_own(server: Server) -> None:
    def store(name: str) -> str:
        client = server.openai(key_of(name))
        made: Any = client.responses.create(model="tiny", input="hello", max_output_tokens=1)
        assert made.store is True
        return str(made.id)

    kept = store("light")
    many = [store("heavy") for _ in range(12)]
    light, heavy = server.openai(key_of("light")), server.openai(key_of("heavy"))
    assert light.responses.retrieve(kept).id == kept
    assert heavy.responses.retrieve(many[-1]).id == many[-1]
    with pytest.raises(openai.NotFoundError):
        heavy.responses.retrieve(many[0])
