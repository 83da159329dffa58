"""Cached answers of a real server: in every protocol, for their tenant only, until they expire."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import ollama
import openai
import pytest
from openai import OpenAI

from galley.speech.audio import Recording
from tests.checkpoints import make_checkpoint
from tests.embedding.checkpoints import make_model
from tests.server import toy_tensors
from tests.server.conftest import ADMIN_KEY, CONTEXT
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.packages import install
from tests.server.refusals import error_of
from tests.server.serving import Server, events, until
from tests.speech.recordings import CALL, encode

pytestmark = pytest.mark.xdist_group("response_cache")

SETTINGS: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 4 * CONTEXT, "admin_key": ADMIN_KEY}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    tenants = KeyFile(folder / "keys", one={}, two={}, none={"response_cache": "off"})
    vectors = make_model(folder / "vectors", "bert", pooling="mean_tokens")
    ranks = make_model(folder / "ranks", "bert", labels=1)
    with Server(
        [f"tiny={model}", f"vectors={vectors}", f"ranks={ranks}"],
        folder / "log",
        **SETTINGS,
        response_cache="exact",
        response_cache_store=folder / "answers.sqlite",
        api_key_file=tenants.path,
        price_per_hour=3600.0,
    ) as running:
        yield running


_numbers = iter(range(5, 1000))


@pytest.fixture
def prompt() -> list[int]:
    """Return token ids that no other test uses."""
    return [7, 8, 9, next(_numbers)]


def complete(
    server: Server, prompt: list[int], tenant: str = "one", headers: Any = None, **fields: Any
) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(
        f"{server.url}/v1/completions",
        json=body,
        headers={**bearer(key_of(tenant)), **(headers or {})},
        timeout=60,
    )


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def did(answer: httpx.Response) -> str:
    """Return the cache's action for this answer, from its header."""
    assert answer.status_code == 200, answer.text
    return answer.headers["x-galley-cache"]


def steps(server: Server, model: str | None = "tiny") -> float:
    """Return the engine's step count once it is idle; ``model``: of several, this one's."""

    def metrics() -> dict[str, float]:
        return server.metrics(model, **bearer(key_of("one")))

    until(lambda: metrics()["galley_requests_running"] == 0)
    return metrics()["galley_engine_steps_total"]


def counted(server: Server, name: str) -> float:
    metrics = server.metrics("tiny", **bearer(key_of("one")))
    return metrics.get(f"galley_response_cache_{name}", 0.0)


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """Stop the engine, so that a running request is not over before others join it."""
    engine = server.engine("tiny")
    engine.suspend()
    try:
        yield
    finally:
        engine.resume()


def test_a_hit_has_the_same_answer_without_a_step(server: Server, prompt: list[int]) -> None:
    first = complete(server, prompt, logprobs=3, n=2, seed=3, temperature=1)
    assert did(first) == "miss"
    assert "x-galley-cache-age" not in first.headers
    before = steps(server)
    again = complete(server, prompt, logprobs=3, n=2, seed=3, temperature=1)
    assert did(again) == "hit"
    assert int(again.headers["x-galley-cache-age"]) >= 0
    assert again.headers["x-galley-cache-key"] == first.headers["x-galley-cache-key"]
    assert again.json()["choices"] == first.json()["choices"]
    assert steps(server) == before
    usage, cost = again.json()["usage"], first.json()["usage"]["cost"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] == len(prompt)
    assert usage["completion_tokens"] == first.json()["usage"]["completion_tokens"]
    assert usage["cost"] == 0.0 < cost


def test_streams_and_whole_answers_are_the_same_entry(server: Server, prompt: list[int]) -> None:
    whole = complete(server, prompt, max_tokens=30)
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 30, "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body, headers=bearer(key_of("one"))
    ) as stream:
        assert stream.headers["x-galley-cache"] == "hit"
        *chunks, done = events(stream)
    assert done == "[DONE]"
    texts = [httpx.Response(200, text=chunk).json()["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == text_of(whole)


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 9},
        {"stop": ["zzz"]},
        {"seed": 1, "temperature": 1},
        {"logprobs": 1},
        {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5},
        {"cache_salt": "other"},
    ],
    ids=str,
)
def test_what_shapes_the_answer_is_in_the_key(
    server: Server, prompt: list[int], change: dict[str, Any]
) -> None:
    assert did(complete(server, prompt, max_tokens=8)) == "miss"
    assert did(complete(server, prompt, **{"max_tokens": 8, **change})) == "miss"
    assert did(complete(server, prompt, max_tokens=8)) == "hit"


def test_greedy_requests_are_equal_whatever_their_seed(server: Server, prompt: list[int]) -> None:
    assert did(complete(server, prompt, seed=1)) == "miss"
    assert did(complete(server, prompt, seed=2)) == "hit"
    assert did(complete(server, prompt, temperature=1, top_k=1)) == "miss"
    assert did(complete(server, prompt, temperature=1, top_k=1)) == "hit"


def test_random_texts_are_stored_only_if_the_request_asks(
    server: Server, prompt: list[int]
) -> None:
    drawn: dict[str, Any] = {"temperature": 1, "max_tokens": 20, "n": 2}
    assert [did(complete(server, prompt, **drawn)) for _ in range(2)] == ["bypass", "bypass"]
    asks = {"x-galley-cache": "exact"}
    first, again = (complete(server, prompt, headers=asks, **drawn) for _ in range(2))
    assert (did(first), did(again)) == ("miss", "hit")
    assert again.json()["choices"] == first.json()["choices"]
    texts = [choice["text"] for choice in first.json()["choices"]]
    assert texts[0] != texts[1]


def test_a_text_that_a_stop_string_ended_is_whole(server: Server, prompt: list[int]) -> None:
    text = text_of(complete(server, prompt, max_tokens=40))
    stop = text[20:22]
    first = complete(server, prompt, max_tokens=40, stop=[stop])
    before = steps(server)
    again = complete(server, prompt, max_tokens=40, stop=[stop])
    assert (did(first), did(again)) == ("miss", "hit")
    assert text_of(again) == text_of(first) == text[: text.index(stop)]
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["usage"]["completion_tokens"] == first.json()["usage"]["completion_tokens"]
    assert steps(server) == before


def test_clients_steer_the_cache(server: Server, prompt: list[int]) -> None:
    def ask(control: str) -> str:
        return did(complete(server, prompt, headers={"Cache-Control": control}))

    assert ask("no-store") == "miss"
    assert ask("max-age=60") == "miss"  # nothing was stored
    assert ask("no-store") == "hit"
    assert ask("no-cache") == "bypass"
    time.sleep(1.1)
    assert ask("max-age=1") == "miss"
    assert ask("max-age=60") == "hit"
    assert ask("only-if-cached, max-stale") == "hit"
    refused = complete(server, prompt, max_tokens=3, headers={"Cache-Control": "only-if-cached"})
    assert error_of(refused, 504)["code"] == "not_stored"
    off = {"x-galley-cache": "off"}
    assert did(complete(server, prompt, headers=off)) == "bypass"


def test_an_answer_ends_with_its_time_to_live(server: Server, prompt: list[int]) -> None:
    def ask(seconds: str, control: str = "", **fields: Any) -> str:
        headers = {"x-galley-cache-ttl": seconds, "Cache-Control": control}
        return did(complete(server, prompt, headers=headers, **fields))

    assert ask("60", max_tokens=9) == "miss"
    assert ask("1", max_tokens=8) == "miss"
    until(lambda: ask("1", "no-store", max_tokens=8) == "miss")
    assert ask("1", max_tokens=9) == "hit"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-galley-cache", "semantics"),
        ("x-galley-cache-ttl", "0"),
        ("x-galley-cache-ttl", "soon"),
        ("x-galley-cache-tag", "a b"),
        ("Cache-Control", "max-age=-1"),
    ],
)
def test_headers_that_cannot_be_honored_are_refused(
    server: Server, prompt: list[int], header: str, value: str
) -> None:
    error = error_of(complete(server, prompt, headers={header: value}), 400)
    assert header.lower() in error["message"].lower()


def test_tenants_do_not_share_answers(server: Server, prompt: list[int]) -> None:
    assert did(complete(server, prompt)) == "miss"
    assert did(complete(server, prompt, tenant="two")) == "miss"
    assert did(complete(server, prompt, tenant="two")) == "hit"
    for _ in range(2):
        assert did(complete(server, prompt, tenant="none")) == "bypass"


def test_a_hundred_equal_requests_are_one_generation(server: Server, prompt: list[int]) -> None:
    names = [f"lookups_total{{result={result}}}" for result in ("miss", "shared", "hit")]
    before = [counted(server, name) for name in names]

    def new() -> list[float]:
        return [counted(server, name) - old for name, old in zip(names, before, strict=True)]

    with ThreadPoolExecutor(100) as threads:
        with paused(server):
            sent = [threads.submit(complete, server, prompt, max_tokens=60) for _ in range(100)]
            until(lambda: sum(new()) == 100)
        answers = [answer.result() for answer in sent]
    texts = {text_of(answer) for answer in answers}
    assert len(texts) == 1
    assert new() == [1, 99, 0]
    costs = [answer.json()["usage"]["cost"] for answer in answers]
    assert sum(cost > 0 for cost in costs) == 1


def test_others_keep_their_answer_when_the_first_client_leaves(
    server: Server, prompt: list[int]
) -> None:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 1500}

    shared = "lookups_total{result=shared}"
    before = counted(server, shared)

    async def leave() -> tuple[str, str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            client.headers.update(bearer(key_of("one")))
            stream = client.stream("POST", "/v1/completions", json={**body, "stream": True})
            async with stream as first:
                pieces = first.aiter_bytes()  # a generator without a name closes the response
                await anext(pieces)
                other = asyncio.create_task(client.post("/v1/completions", json=body))
                while (
                    not other.done() and await asyncio.to_thread(counted, server, shared) <= before
                ):
                    await asyncio.sleep(0.02)
            answer = await other
            return did(answer), text_of(answer)

    word, text = asyncio.run(leave())
    assert word == "hit"
    alone = complete(server, prompt, max_tokens=1500, headers={"x-galley-cache": "off"})
    assert text == text_of(alone)


def test_each_of_equal_requests_has_its_own_deadline(server: Server, prompt: list[int]) -> None:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 4000, "stream": True}
    headers = {**bearer(key_of("one")), "x-request-timeout": "4"}
    shared = "lookups_total{result=shared}"
    before = counted(server, shared)
    with (
        ThreadPoolExecutor(1) as threads,
        httpx.stream(
            "POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=60
        ) as late,
    ):
        pieces = events(late)
        next(pieces)
        with paused(server):
            patient = threads.submit(complete, server, prompt, max_tokens=4000)
            until(lambda: counted(server, shared) > before)
            assert "deadline_exceeded" in list(pieces)[-1]
        answer = patient.result()
    assert did(answer) == "hit"
    alone = complete(server, prompt, max_tokens=4000, headers={"x-galley-cache": "off"})
    assert text_of(answer) == text_of(alone)


def test_an_answer_that_nobody_waited_for_is_not_stored(server: Server, prompt: list[int]) -> None:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 16000, "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body, headers=bearer(key_of("one")), timeout=60
    ) as stream:
        next(events(stream))
    steps(server)
    refused = complete(
        server, prompt, max_tokens=16000, headers={"Cache-Control": "only-if-cached"}
    )
    assert error_of(refused, 504)["code"] == "not_stored"


def test_a_full_queue_refuses_only_what_must_be_computed(model: Path, tmp_path: Path) -> None:
    with Server(
        model,
        tmp_path / "log",
        **SETTINGS,
        max_running=1,
        max_queue=0,
        response_cache="exact",
        response_cache_store=tmp_path / "answers.sqlite",
    ) as server:
        client = server.openai()
        sent: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 4}
        chat: dict[str, Any] = {**sent, "messages": [{"role": "user", "content": "Hello"}]}
        expected = client.chat.completions.create(**chat).choices[0].message.content
        text = client.completions.create(**sent, prompt="Hello").choices[0].text
        running = client.completions.create(
            model="tiny",
            prompt="Long",
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(running))
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**sent, prompt="Other")
        again = client.chat.completions.with_raw_response.create(**chat)
        assert again.headers["x-galley-cache"] == "hit"
        assert again.parse().choices[0].message.content == expected
        assert client.completions.create(**sent, prompt="Hello").choices[0].text == text
        fresh = {"Cache-Control": "no-cache"}
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**sent, prompt="Hello", extra_headers=fresh)
        running.close()


def test_every_protocol_has_it(server: Server) -> None:
    key = key_of("one")
    question: Any = [{"role": "user", "content": "every protocol"}]
    sdk = OpenAI(base_url=f"{server.url}/v1", api_key=key)
    claude = anthropic.Anthropic(base_url=server.url, api_key=key)
    words = []
    for _ in range(2):
        chat = sdk.chat.completions.with_raw_response.create(
            model="tiny", messages=question, temperature=0, max_tokens=9
        )
        response = sdk.responses.with_raw_response.create(
            model="tiny", input="every protocol", temperature=0, max_output_tokens=10
        )
        message = claude.messages.with_raw_response.create(
            model="tiny", messages=question, max_tokens=11, extra_body={"temperature": 0}
        )
        native = httpx.post(
            f"{server.url}/api/chat",
            json={"model": "tiny", "messages": question, "stream": False}
            | {"options": {"temperature": 0, "num_predict": 12}},
            headers=bearer(key),
        )
        answers = (chat, response, message, native)
        words.append([answer.headers["x-galley-cache"] for answer in answers])
    assert words == [["miss"] * 4, ["hit"] * 4]
    cached = message.parse().usage.cache_read_input_tokens
    assert cached
    assert ollama.ChatResponse(**native.json()).message.content


def test_vectors_and_scores_are_stored_text_by_text(server: Server) -> None:
    def embed(*texts: str) -> httpx.Response:
        body = {"model": "vectors", "input": list(texts)}
        headers = bearer(key_of("one"))
        return httpx.post(f"{server.url}/v1/embeddings", json=body, headers=headers)

    first = embed("one text", "another one")
    assert did(first) == "miss"
    assert did(embed("one text", "a third one")) == "miss"
    again = embed("another one", "one text", "a third one")
    assert did(again) == "hit"
    expected = [entry["embedding"] for entry in first.json()["data"]]
    assert [entry["embedding"] for entry in again.json()["data"]][:2] == expected[::-1]
    ranked = [
        httpx.post(
            f"{server.url}/v1/rerank",
            json={"model": "ranks", "query": "a", "documents": ["b", "c"]},
            headers=bearer(key_of("one")),
        )
        for _ in range(2)
    ]
    assert [did(answer) for answer in ranked] == ["miss", "hit"]
    results = [answer.json()["results"] for answer in ranked]
    assert results[0] == results[1]


def test_transcripts_are_stored_by_recording(hearing: Path, tmp_path: Path) -> None:
    recording = encode("wav", np.concatenate(list(Recording(CALL)))[32_000:80_000])
    store = tmp_path / "answers.sqlite"
    cache: dict[str, Any] = {"response_cache": "exact", "response_cache_store": store}

    def ask(server: Server, data: bytes = recording, **fields: Any) -> httpx.Response:
        return httpx.post(
            f"{server.url}/v1/audio/transcriptions",
            files={"file": ("any name.wav", data)},
            data={"language": "en", "response_format": "verbose_json", **fields},
            timeout=60,
        )

    with Server(hearing, tmp_path / "log", threads=1, **cache) as server:
        first = ask(server)
        assert did(first) == "miss"
        before = steps(server, None)
        again = ask(server)
        assert did(again) == "hit"
        assert steps(server, None) == before
        for name in ("text", "segments", "duration", "language"):
            assert again.json()[name] == first.json()[name], name
        # Other formats of the same transcript share it.
        for form in ("text", "srt", "vtt", "json"):
            assert did(ask(server, response_format=form)) == "hit"
        streamed = ask(server, response_format="json", stream="true")
        assert did(streamed) == "hit"
        assert "transcript.text.done" in streamed.text
        assert did(ask(server, prompt="other")) == "miss"
        other = bytearray(recording)
        other[-2] ^= 1
        assert did(ask(server, bytes(other))) == "miss"


def test_tensors_are_stored(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": install(tmp_path, toy_tensors, "doubler")}
    weights = tmp_path / "weights"
    weights.mkdir()
    cache: dict[str, Any] = {"response_cache": "exact"}
    cache["response_cache_store"] = tmp_path / "answers.sqlite"

    def infer(server: Server, *values: float) -> httpx.Response:
        x = {"name": "x", "datatype": "FP32", "shape": [len(values) // 3, 3], "data": values}
        return httpx.post(f"{server.url}/v2/models/twice/infer", json={"inputs": [x]}, timeout=60)

    log = tmp_path / "log"
    with Server([f"twice={weights}"], log, engine="doubler", environ=environ, **cache) as server:
        first, again = infer(server, 1, 2, 3), infer(server, 1, 2, 3)
        assert (did(first), did(again)) == ("miss", "hit")
        assert again.json()["outputs"] == first.json()["outputs"]
        assert did(infer(server, 1, 2, 4)) == "miss"


def test_what_is_saved_is_counted(server: Server, prompt: list[int]) -> None:
    complete(server, prompt, max_tokens=10)
    names = ["saved_tokens_total{kind=prompt}", "saved_tokens_total{kind=generated}"]
    names += ["saved_engine_seconds_total", "saved_cost_total"]
    before = [counted(server, name) for name in names]
    assert did(complete(server, prompt, max_tokens=10)) == "hit"
    after = [counted(server, name) for name in names]
    prompts, generated, seconds, cost = (new - old for new, old in zip(after, before, strict=True))
    assert (prompts, generated) == (len(prompt), 10)
    assert seconds > 0
    # 3,600 per hour is 1 per second.
    assert cost == pytest.approx(seconds)


def test_answers_outlast_the_server_and_end_with_the_model(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "tiny"))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    settings = SETTINGS | {
        "response_cache": "exact",
        "response_cache_store": tmp_path / "answers.sqlite",
        # Only streams keep this pace: at it, the eight tokens would take hours.
        "response_cache_pace": 0.001,
    }

    def ask(server: Server, **headers: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
        body |= {"max_tokens": 8}
        url = f"{server.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=60)

    with Server(folder, tmp_path / "log", **settings) as server:
        first = ask(server)
        assert did(first) == "miss"
        assert server.stop() == 0
    with Server(folder, tmp_path / "log", **settings) as server:
        again = ask(server)
        assert did(again) == "hit"
        assert again.json()["choices"] == first.json()["choices"]
        for expected in ("miss", "hit"):  # whole answers of another protocol
            body = {"text_input": "hello", "parameters": {"temperature": 0, "max_tokens": 8}}
            url = f"{server.url}/v2/models/tiny/generate"
            assert did(httpx.post(url, json=body, timeout=60)) == expected
            compacted = httpx.post(
                f"{server.url}/v1/responses/compact",
                json={"model": "tiny", "input": "hello"},
                timeout=60,
            )
            assert did(compacted) == expected
        # The template renders a different prompt.
        other = (folder / "chat_template.jinja").exists()
        config = folder / ("chat_template.jinja" if other else "tokenizer_config.json")
        text = config.read_text()
        config.write_text(text.replace("user", "User") if other else text.replace("<|", "<||"))
        make_checkpoint(folder, seed=7, max_position_embeddings=CONTEXT)
        reloaded = httpx.post(
            f"{server.url}/admin/reload",
            json={"model": "tiny"},
            headers=bearer(ADMIN_KEY),
            timeout=60,
        )
        assert reloaded.status_code == 200, reloaded.text
        assert did(ask(server)) == "miss"
        assert did(ask(server)) == "hit"


def test_a_server_without_a_store_says_so(model: Path, tmp_path: Path) -> None:
    with Server(model, tmp_path / "log", **SETTINGS) as server:
        body = {"prompt": [5, 6], "max_tokens": 2}
        url = f"{server.url}/v1/completions"
        plain = httpx.post(url, json=body, headers={"Cache-Control": "no-cache"})
        assert plain.status_code == 200
        assert "x-galley-cache" not in plain.headers
        refused = httpx.post(url, json=body, headers={"x-galley-cache": "exact"})
        assert "--response-cache" in error_of(refused, 400)["message"]
