"""Answers to questions that mean the same, on a real server with the bundled embedding model."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from galley.errors import SettingsError
from galley.gateway.registry import Registry
from galley.settings.config import Settings
from tests.cache.redis_server import PROGRAM, RedisServer
from tests.cli.command import galley
from tests.embedding.checkpoints import make_model
from tests.server.conftest import ADMIN_KEY, CONTEXT
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.refusals import error_of
from tests.server.serving import Server, events, until
from tests.thorough import long

pytestmark = pytest.mark.xdist_group("semantic_cache")

RESET = "How do I reset my password?"
RESET_TOO = "How can I reset my password?"
EMBEDDER = "galley-demo-embed"
SETTINGS: dict[str, Any] = {
    "threads": 1,
    "kv_cache_tokens": 4 * CONTEXT,
    "semantic_cache_model": "vectors",
    "semantic_cache_threshold": 0.8,
    "semantic_cache_checked": 0,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "answers.sqlite"


@pytest.fixture(scope="module")
def server(model: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    tenants = KeyFile(folder / "keys", one={}, two={}, exact={"response_cache": "exact"})
    with Server(
        [f"tiny={model}", f"vectors={EMBEDDER}", "tiny.response_cache=semantic"],
        folder / "log",
        **SETTINGS,
        sampling_defaults="temperature=0",
        admin_key=ADMIN_KEY,
        response_cache_store=store,
        api_key_file=tenants.path,
    ) as running:
        yield running


_systems = iter(range(1000))


@pytest.fixture
def system() -> str:
    """Return a system prompt that no other test uses."""
    return f"You are assistant number {next(_systems)}."


def ask(
    server: Server,
    text: str | list[dict[str, Any]],
    system: str,
    tenant: str = "one",
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:
    last = [{"role": "user", "content": text}] if isinstance(text, str) else text
    body = {
        "model": "tiny",
        "messages": [{"role": "system", "content": system}, *last],
        "temperature": 0,
        "max_tokens": 8,
        **fields,
    }
    return httpx.post(
        f"{server.url}/v1/chat/completions",
        json=body,
        headers={**bearer(key_of(tenant)), **(headers or {})},
        timeout=60,
    )


def did(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers["x-galley-cache"]


def said(answer: httpx.Response) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_a_question_that_means_the_same_gets_the_answer(server: Server, system: str) -> None:
    first = ask(server, RESET, system)
    assert did(first) == "miss"
    other = ask(server, RESET_TOO, system)
    word, similarity = did(other).split()
    assert word == "semantic"
    assert 0.8 <= float(similarity) <= 1
    assert said(other) == said(first)
    # The key is that of the answer, so that a wrong one can be removed.
    assert other.headers["x-galley-cache-key"] == first.headers["x-galley-cache-key"]
    assert int(other.headers["x-galley-cache-age"]) >= 0
    usage = other.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert did(ask(server, RESET, system)) == "hit"


def test_a_summary_is_never_that_of_another_conversation(server: Server) -> None:
    def compacted(how: str) -> httpx.Response:
        body = {"model": "tiny", "input": f"The launch went {how}."}
        return httpx.post(
            f"{server.url}/v1/responses/compact",
            json=body,
            headers=bearer(key_of("one")),
            timeout=60,
        )

    assert [did(compacted(how)) for how in ("well", "badly", "well")] == ["miss", "miss", "hit"]


def test_a_prompt_is_prepared_even_if_an_answer_is_stored(server: Server) -> None:
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    event = {"type": "response.create", "model": "tiny", "input": "cat " * 40, "generate": False}
    with connect(url, additional_headers=bearer(key_of("one"))) as socket:
        for _ in range(2):
            socket.send(json.dumps(event))
            while (answer := json.loads(socket.recv(timeout=30)))["type"] != "response.completed":
                assert answer["type"] != "error", answer
    used = answer["response"]["usage"]
    # Of a stored answer, all of the prompt counts as cached.
    assert 0 < used["input_tokens_details"]["cached_tokens"] < used["input_tokens"]


def test_a_hit_streams(server: Server, system: str) -> None:
    whole = ask(server, RESET, system, max_tokens=30)
    body = {"model": "tiny", "temperature": 0, "max_tokens": 30, "stream": True}
    body["messages"] = [
        {"role": "system", "content": system},
        {"role": "user", "content": RESET_TOO},
    ]
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, headers=bearer(key_of("one"))
    ) as stream:
        assert stream.headers["x-galley-cache"].startswith("semantic ")
        *chunks, done = events(stream)
    assert done == "[DONE]"
    deltas = [httpx.Response(200, text=chunk).json()["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == said(whole)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Can I reset my password 3 times?", "Can I reset my password 4 times?"),
        ("Can I reset my password?", "Can't I reset my password?"),
        ("Can I unlock my account?", "Can I lock my account?"),
        ("Can Anna reset the password of Boris?", "Can Boris reset the password of Anna?"),
    ],
)
def test_other_facts_are_another_question(
    server: Server, system: str, first: str, second: str
) -> None:
    assert did(ask(server, first, system)) == "miss"
    assert did(ask(server, second, system)) == "miss"


EARLIER = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 9},
        {"stop": ["zzz"]},
        {"presence_penalty": 0.5},
        {"cache_salt": "other"},
        {"text": [*EARLIER, {"role": "user", "content": RESET_TOO}]},
        {"system": "Another system prompt"},
        {"tenant": "two"},
        {"tenant": "exact"},
        {"headers": {"x-galley-cache": "exact"}},
        {"n": 2},
        {"temperature": 1},
    ],
    ids=str,
)
def test_all_but_the_last_message_must_be_equal(
    server: Server, system: str, change: dict[str, Any]
) -> None:
    assert did(ask(server, RESET, system)) == "miss"
    changed = {"text": RESET_TOO, "system": system, **change}
    assert did(ask(server, **changed)) in ("miss", "bypass")


def turns(count: int, last: str) -> list[dict[str, Any]]:
    return [*(count - 1) * EARLIER, {"role": "user", "content": last}]


def test_the_history_is_part_of_the_question_up_to_a_length(server: Server, system: str) -> None:
    assert did(ask(server, turns(3, RESET), system)) == "miss"
    assert did(ask(server, turns(3, RESET_TOO), system)).startswith("semantic")
    assert did(ask(server, turns(4, RESET), system)) == "miss"
    assert did(ask(server, turns(4, RESET_TOO), system)) == "miss"


def test_clients_steer_it(server: Server, system: str) -> None:
    assert did(ask(server, RESET, system)) == "miss"
    stored = {"Cache-Control": "only-if-cached"}
    assert did(ask(server, RESET_TOO, system, headers=stored)).startswith("semantic")
    fresh = {"Cache-Control": "no-cache, no-store"}
    assert did(ask(server, RESET_TOO, system, headers=fresh)) == "bypass"
    other = f"{system} Be brief."
    assert did(ask(server, RESET, other, headers={"x-galley-cache-ttl": "1"})) == "miss"
    until(lambda: error_code(ask(server, RESET_TOO, other, headers=stored)) == "not_stored")


def error_code(answer: httpx.Response) -> str | None:
    return None if answer.status_code == 200 else answer.json()["error"]["code"]


def test_a_purged_answer_is_never_found(server: Server, system: str, store: Path) -> None:
    first = ask(server, RESET, system, headers={"x-galley-cache-tag": "wrong"})
    assert did(ask(server, RESET_TOO, system)).startswith("semantic")
    key = first.headers["x-galley-cache-key"]
    until(lambda: RESET in galley("cache", "show", key[:16], "--store", store).stdout)
    assert "removed 1" in galley("cache", "rm", key[:16], "--store", store).stdout
    assert did(ask(server, RESET_TOO, system)) == "miss"


def test_tune_has_another_server_embed(server: Server, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text(
        f'{{"a": "{RESET}", "b": "{RESET_TOO}", "same": true}}\n'
        f'{{"a": "{RESET}", "b": "Where are you?", "same": false}}\n'
    )
    command = ("cache", "tune", data, "--model", "vectors", "--url", server.url)
    key = {"GALLEY_SEMANTIC_CACHE_API_KEY": key_of("two")}
    done = galley(*command, environ=key)
    assert "2 pairs, 1 of which mean the same" in done.stdout, done.stderr
    # Two pairs show nothing.
    assert "give more pairs" in done.stderr
    # The key is not sent to a server that is not the one in the settings.
    done = galley(*command, environ={**key, "GALLEY_SEMANTIC_CACHE_URL": "http://localhost:1"})
    assert "/v1/embeddings answered 401" in done.stderr


def test_false_hits_turn_it_off(model: Path, tmp_path: Path) -> None:
    """The tiny model's answers to two questions never agree, so that each checked hit is false."""
    with Server(
        [f"tiny={model}", f"vectors={EMBEDDER}", "tiny.response_cache=semantic"],
        tmp_path / "log",
        **SETTINGS | {"semantic_cache_checked": 1, "semantic_cache_agreement": 1.0},
        response_cache_store=tmp_path / "answers.sqlite",
    ) as server:

        def counted(name: str) -> float:
            return server.metrics("tiny").get(f"galley_response_cache_{name}", 0.0)

        def false_hits_are(count: int) -> bool:
            return counted("checked_hits_total{result=false}") == count

        number = 0
        while not counted("semantic_off"):
            system = f"You are assistant number {number}."
            assert did(ask(server, RESET, system)) == "miss"
            assert did(ask(server, RESET_TOO, system)).startswith("semantic")
            number += 1
            until(partial(false_hits_are, number))
            assert number < 3
        for text in (RESET, RESET_TOO):
            assert did(ask(server, text, "Another system prompt")) == "miss"
        assert "semantic hits were false" in server.log
        # A question whose hit was false has its own answer now.
        again = ask(server, RESET_TOO, "You are assistant number 0.")
        assert did(again) == "hit"


def test_tools_may_have_numbers_of_any_size(server: Server, system: str) -> None:
    tools = [tool_with({"type": "integer", "maximum": 2**70})]
    assert did(ask(server, RESET, system, tools=tools, tool_choice="none")) == "miss"
    again = ask(server, RESET_TOO, system, tools=tools, tool_choice="none")
    assert did(again).startswith("semantic")


def tool_with(schema: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"size": schema}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_what_it_needs_is_named(model: Path, tmp_path: Path) -> None:
    with Server(
        model, tmp_path / "log", threads=1, response_cache="exact",
        response_cache_store=tmp_path / "answers.sqlite",
    ) as server:  # fmt: skip
        refused = ask(server, RESET, "S", model=model.name, headers={"x-galley-cache": "semantic"})
        assert "--semantic-cache-model" in error_of(refused, 400)["message"]


@long
def test_another_server_embeds(server: Server, model: Path, tmp_path: Path) -> None:
    with Server(
        model,
        tmp_path / "log",
        **SETTINGS,
        served_model_name="tiny",
        response_cache="semantic",
        response_cache_store=tmp_path / "answers.sqlite",
        semantic_cache_url=f"{server.url}/v1",
        semantic_cache_api_key=key_of("two"),
    ) as other:
        assert did(ask(other, RESET, "S")) == "miss"
        assert did(ask(other, RESET_TOO, "S")).startswith("semantic")


@long
@pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")
def test_servers_share_questions_and_a_reranker_may_object(model: Path, tmp_path: Path) -> None:
    ranks = make_model(tmp_path / "ranks", "bert", labels=1)
    models = [f"tiny={model}", f"vectors={EMBEDDER}", "tiny.response_cache=semantic"]
    with (
        RedisServer(tmp_path) as redis,
        Server(models, tmp_path / "one", **SETTINGS, response_cache_store=redis.url) as one,
        Server(
            [*models, f"ranks={ranks}"],
            tmp_path / "two",
            **SETTINGS,
            response_cache_store=redis.url,
            semantic_cache_reranker="ranks",
            semantic_cache_reranker_threshold=1e9,
        ) as two,
    ):
        stored = {"Cache-Control": "only-if-cached"}

        def found(server: Server, system: str) -> bool:
            answer = ask(server, RESET_TOO, system, headers=stored)
            return answer.status_code == 200 and did(answer).startswith("semantic")

        first = ask(two, RESET, "S")
        assert did(first) == "miss"
        until(lambda: found(one, "S"))
        assert said(ask(one, RESET_TOO, "S")) == said(first)
        # No score reaches the second server's threshold.
        assert not found(two, "S")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"response_cache": "semantic"}, "no semantic_cache_model"),
        ({"semantic_cache_model": "vectors"}, "no semantic_cache_threshold"),
        (
            {"semantic_cache_model": "other", "semantic_cache_threshold": 0.9},
            "'other', which is not a model of this server",
        ),
        (
            {
                "semantic_cache_model": "tiny",
                "semantic_cache_threshold": 0.9,
                "semantic_cache_reranker": "tiny",
            },
            "give both or none",
        ),
        (
            {
                "semantic_cache_model": "x",
                "semantic_cache_threshold": 0.9,
                "semantic_cache_url": "ftp://h",
            },
            "semantic_cache_url is not a URL",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    tmp_path: Path, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(SettingsError, match=error):
        Registry(
            Settings(
                served_model_name="tiny",
                response_cache_store=str(tmp_path / "answers.sqlite"),
                **settings,
            )
        )


def test_the_server_refuses_settings_that_nothing_uses() -> None:
    done = galley("serve", "--port", "0", "--semantic-cache-turns", "2")
    assert done.returncode == 2
    assert "no response cache uses semantic_cache_turns" in done.stderr
