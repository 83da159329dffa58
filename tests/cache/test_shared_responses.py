"""Stored responses in Redis: of several servers, and of one that was killed while it answered."""

import asyncio
import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from galley.cache.redis_store import RedisStore
from galley.cache.store import Bounds
from galley.errors import SettingsError
from galley.protocols.openai.responses.answers import ResponseAnswer
from galley.protocols.openai.responses.resuming import Resuming
from galley.protocols.openai.responses.schemas import ResponseRequest
from galley.protocols.openai.responses.shared import Begun, SharedResponses
from galley.protocols.openai.responses.store import StoredResponse
from galley.settings.config import Settings
from tests.cache.redis_server import RedisServer
from tests.server.refusals import error_of
from tests.server.serving import Server, until
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("cache_servers")


def shared(server: RedisServer, **limits: Any) -> SharedResponses:
    return SharedResponses(Settings(stored_responses_at=server.url, **limits))


def stop_engines(server: Server) -> None:
    """Have a server's engine compute nothing any more."""
    for child in server.children():
        child.send_signal(signal.SIGSTOP)


def of(text: str) -> StoredResponse:
    return StoredResponse(json.dumps(text).encode(), b"[]")


def test_tenants_are_apart_and_bounded(redis_server: RedisServer) -> None:
    async def case() -> None:
        store = shared(redis_server, stored_responses=3, stored_response_bytes=100)
        for number in range(5):
            assert await store.keep("a", f"r{number}", of(f"a{number}"))
        assert await store.keep("b", "r0", of("b"))
        assert [bool(await store.find("a", f"r{number}")) for number in range(5)] == [
            False,
            False,
            True,
            True,
            True,
        ]
        assert await store.find("b", "r0") == of("b")
        assert not await store.keep("a", "large", of("x" * 100))
        assert await store.remove("a", "r4")
        assert not await store.remove("a", "r4")
        assert await store.find("b", "r4") is None

    asyncio.run(case())


def test_one_server_answers_what_another_had_begun(redis_server: RedisServer) -> None:
    async def case() -> None:
        first, second, third = (shared(redis_server) for _ in range(3))
        request = ResponseRequest(model="m", input="a")
        begun = Begun(request=request, seed=7, created=1, shown={"id": "r"})
        await first.begin("a", "r", begun, 60)
        assert await second.begun("a", "r") == begun
        assert await second.begun("b", "r") is None
        assert not await second.remove("a", "r")
        assert await second.begun("a", "r") == begun
        assert not await second.take_over("a", "r")
        redis_server.client().delete(*redis_server.client().keys("*:alive"))
        got = await asyncio.gather(second.take_over("a", "r"), third.take_over("a", "r"))
        assert sorted(got) == [False, True]
        await (second if got[0] else third).ended("a", "r")
        assert await first.begun("a", "r") is None

    asyncio.run(case())


def test_a_response_that_has_just_been_completed_is_not_answered_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        other = shared(redis_server)
        request = ResponseRequest(model="m", input="a")
        await other.begin("a", "r", Begun(request=request, seed=7, created=1, shown={}), 60)
        resuming = Resuming.__new__(Resuming)
        resuming._shared = resuming.store = store = shared(redis_server)
        read = store.begun

        async def late(tenant: str, name: str) -> Begun | None:
            begun = await read(tenant, name)
            await other.keep(tenant, name, of("x"))
            await other.ended(tenant, name)
            return begun

        monkeypatch.setattr(store, "begun", late)
        caller: Any = SimpleNamespace(tenant=SimpleNamespace(name="a"))
        assert await resuming.found(caller, "r") == of("x")
        assert await other.take_over("a", "r")  # nobody claims it
        await other.ended("a", "r")

    asyncio.run(case())


def test_a_client_that_hangs_up_while_the_beginning_is_recorded_leaves_nothing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        store = shared(redis_server)
        recorded, closed = asyncio.Event(), asyncio.Event()
        begin = store.begin

        async def slowly(*what: Any) -> None:
            await begin(*what)
            recorded.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(store, "begin", slowly)
        monkeypatch.setattr(ResponseAnswer, "_response", lambda self, finish: {"id": "r"})
        caller = SimpleNamespace(tenant=SimpleNamespace(name="a"), deadline=time.monotonic() + 60)
        fakes: dict[str, Any] = {
            "_store": store,
            "_call": SimpleNamespace(caller=caller),
            "_generation": SimpleNamespace(close=closed.set),
            "_parsed": ResponseRequest(model="m", input="a"),
            "_created": 1,
        }
        answer = ResponseAnswer.__new__(ResponseAnswer)
        vars(answer).update(fakes)
        beginning = asyncio.create_task(answer._begin(7))
        await recorded.wait()
        assert await store.begun("a", "r") is not None
        beginning.cancel()
        await asyncio.wait([beginning])
        assert closed.is_set()
        while await store.begun("a", "r") is not None:
            await asyncio.sleep(0.01)
        assert not store._beats

    asyncio.run(asyncio.wait_for(case(), 30))


def test_a_url_that_cannot_be_read_is_not_shown() -> None:
    for password in ("se#cret", "se/cret"):
        settings = Settings(stored_responses_at=f"redis://:{password}@host:6379/0")
        with pytest.raises(SettingsError, match="stored_responses_at is not the URL") as raised:
            SharedResponses(settings)
        assert "'se'" not in str(raised.value)
        with pytest.raises(SettingsError, match="response_cache_store") as raised:
            RedisStore(settings.stored_responses_at, Bounds(bytes=10, entries=10, seconds=10), 1.0)
        assert "'se'" not in str(raised.value)


def test_without_redis_nothing_is_stored_and_nothing_fails(tmp_path: Path) -> None:
    async def case() -> None:
        store = SharedResponses(Settings(stored_responses_at=f"unix://{tmp_path}/none"))
        assert not await store.keep("a", "r", of("x"))
        assert await store.find("a", "r") is None
        assert not await store.remove("a", "r")

    asyncio.run(case())


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match="must begin with redis://"):
        Settings(stored_responses_at="localhost:6379")


def test_a_response_is_fetched_from_another_server_when_its_own_was_killed(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    make_calling(folder, max_position_embeddings=4096)
    options: Any = {"threads": 1, "kv_cache_tokens": 8192, "stored_responses_at": redis_server.url}
    text = {"type": "string", "minLength": 2000}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "long", "schema": schema, "strict": False}}
    body = {"input": "Who?", "temperature": 1.0, "max_output_tokens": 3000, "text": form}
    pieces: list[str] = []
    with Server(folder, tmp_path / "two", **options) as other:
        with Server(folder, tmp_path / "one", **options) as server:
            route = f"{server.url}/v1/responses"
            with httpx.stream("POST", route, json=body | {"stream": True}, timeout=60) as answer:
                lines = (line for line in answer.iter_lines() if line.startswith("data: "))
                stream = (line[6:] for line in lines)
                name = json.loads(next(stream))["response"]["id"]
                for event in map(json.loads, stream):
                    if event["type"] == "response.output_text.delta":
                        pieces.append(event["delta"])
                    if len(pieces) == 5:
                        # From now on nothing of the answer is computed there.
                        stop_engines(server)
                        break
                running = httpx.get(f"{other.url}/v1/responses/{name}").json()
                assert (running["status"], running["id"]) == ("in_progress", name)
                server.kill()
        address = f"{other.url}/v1/responses/{name}"

        def completed() -> Any:
            found = httpx.get(address).json()
            return found if found["status"] != "in_progress" else None

        found = until(completed, 300)
        [message] = [item for item in found["output"] if item["type"] == "message"]
        assert message["content"][0]["text"].startswith("".join(pieces))
        assert found["usage"]["output_tokens"] > 100
        assert found["created_at"] == running["created_at"]
        with httpx.stream("GET", address, params={"stream": "true"}, timeout=60) as answer:
            last = [line for line in answer.iter_lines() if line.startswith("data")][-1]
        assert json.loads(last[6:])["response"]["output"] == found["output"]
        error = error_of(httpx.get(f"{other.url}/v1/responses/resp_none"), 404)
        assert "resp_none" in error["message"]
