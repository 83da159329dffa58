"""Kill -9 on a real server: the engine under load, then the server itself."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.conftest import CheckpointMaker
from tests.missing import late_engine
from tests.server.serving import Server, events, until

STREAMS = 16
TOKENS = 150


@pytest.fixture(scope="module")
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama")


def body(i: int) -> dict[str, Any]:
    """Half of the streams are greedy, half sampled with a seed; prompt lengths differ."""
    sampled = {"temperature": 1.0, "seed": i, "top_p": 0.95} if i % 2 else {"temperature": 0}
    return {
        "model": "llama0",
        "prompt": [5 + i, *range(20, 20 + 3 * i)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "logprobs": 2,
        "presence_penalty": 0.3,
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampled,
    }


async def stream(client: httpx.AsyncClient, request: dict[str, Any], seen: list[int]) -> list[Any]:
    """Return everything in the chunks except id and time. Counts tokens in ``seen``."""
    chunks = []
    async with client.stream("POST", "/v1/completions", json=request) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = httpx.Response(200, text=line[6:]).json()
                assert "error" not in chunk, chunk
                seen[0] += tokens_in(chunk)
                chunks.append((chunk["choices"], chunk.get("usage")))
    return chunks


def tokens_in(chunk: Any) -> int:
    return sum(
        len(choice["logprobs"]["tokens"]) for choice in chunk["choices"] if choice["logprobs"]
    )


async def all_streams(
    server: Server, model: str, *, kill_after: list[int], speculation: str = "auto"
) -> list[list[Any]]:
    """Run the streams; kill the engine each time this many tokens have arrived in total."""
    seen = [0]

    async def killer() -> None:
        for count in kill_after:
            while seen[0] < count:
                await asyncio.sleep(0.002)
            (engine,) = server.children()
            engine.kill()
            # The next kill must meet the next engine.
            with contextlib.suppress(psutil.NoSuchProcess):
                while engine.status() != psutil.STATUS_ZOMBIE:
                    await asyncio.sleep(0.002)

    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        options = {"model": model, "speculation": speculation}
        tasks = [stream(client, {**body(i), **options}, seen) for i in range(STREAMS)]
        chunks, _ = await asyncio.gather(asyncio.gather(*tasks), killer())
        return list(chunks)


def text_of(chunks: list[Any]) -> tuple[str, list[Any], list[Any], Any]:
    choices = [choice for group, _ in chunks for choice in group]
    usage = chunks[-1][1]
    logprobs = [c["logprobs"] for c in choices if c.get("logprobs")]
    return (
        "".join(choice["text"] for choice in choices),
        [value for entry in logprobs for value in entry["token_logprobs"]],
        [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        # Cached tokens are excluded: a resubmitted request finds its own prompt in the cache.
        (usage["prompt_tokens"], usage["completion_tokens"]),
    )


def test_streams_survive_the_engine(folder: Path, tmp_path: Path) -> None:
    """Speculation drafts from earlier answers, too; the texts equal those without it."""
    log = tmp_path / "log"
    with Server(folder, log, threads=1, kv_cache_tokens=8192, speculation="recent") as server:
        model = folder.name
        calm = asyncio.run(all_streams(server, model, kill_after=[], speculation="off"))
        accepted = "galley_speculation_accepted_tokens_total{proposer=recent}"
        for _ in range(10):
            known = asyncio.run(all_streams(server, model, kill_after=[]))
            assert [text_of(chunks) for chunks in known] == [text_of(chunks) for chunks in calm]
            if server.metrics().get(accepted):
                break  # steps that were slow by chance can make drafts seem dear for a while
        total = STREAMS * TOKENS
        killed = asyncio.run(all_streams(server, model, kill_after=[total // 10, total // 3]))
        assert [text_of(chunks) for chunks in killed] == [text_of(chunks) for chunks in calm]
        until(lambda: server.metrics()["galley_engine_restarts_total"] == 2)
        assert server.metrics()[accepted] > 0
        assert len({text_of(chunks)[0] for chunks in calm}) == STREAMS
        until(lambda: server.metrics()["galley_kv_blocks{state=used}"] == 0)


def test_readiness_follows_the_engine_and_new_requests_wait(folder: Path, tmp_path: Path) -> None:
    with Server(folder, tmp_path / "log", threads=1) as server, server.client() as client:
        assert client.get("/ready").status_code == 200
        (engine,) = server.children()
        engine.kill()
        until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/health").status_code == 200
        answer = client.post(
            "/v1/completions",
            json={"model": folder.name, "prompt": [5, 6], "max_tokens": 3, "temperature": 0},
        )
        assert answer.status_code == 200, answer.text
        assert client.get("/ready").status_code == 200


def test_the_engine_does_not_outlive_the_server(folder: Path, tmp_path: Path) -> None:
    server = Server(folder, tmp_path / "log", threads=1)
    with server, server.client() as client:
        (engine,) = server.children()
        # In the middle of work, so that the engine is not just waiting for its socket.
        request = {**body(1), "model": folder.name, "max_tokens": 400}
        with client.stream("POST", "/v1/completions", json=request) as response:
            next(events(response))
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            until(lambda: not psutil.pid_exists(engine.pid), seconds=5)


def test_a_terminal_interrupt_reaches_the_server_only(folder: Path, tmp_path: Path) -> None:
    """Ctrl-C signals the whole process group; the engine must stay for the drain."""
    with Server(folder, tmp_path / "log", threads=1) as server, server.client() as client:
        (engine,) = server.children()
        request = {**body(0), "model": folder.name}
        with client.stream("POST", "/v1/completions", json=request) as response:
            received = events(response)
            next(received)
            engine.send_signal(signal.SIGINT)
            engine.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGINT)
            rest = list(received)
        assert rest[-1] == "[DONE]"
        tokens = json.loads(rest[-2])["usage"]["completion_tokens"]
        assert tokens == TOKENS
        assert server.process.wait(30) == 0
        until(lambda: not psutil.pid_exists(engine.pid))


def test_an_exhausted_cache_preempts_and_all_requests_finish(folder: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "threads": 1,
        "kv_cache_tokens": 400,
        "max_batch_tokens": 64,
        "max_running": 32,
    }
    with Server(folder, tmp_path / "roomy", threads=1) as server:
        expected = asyncio.run(all_streams(server, folder.name, kill_after=[]))
    with Server(folder, tmp_path / "tight", **flags) as server, server.client() as client:
        squeezed = asyncio.run(all_streams(server, folder.name, kill_after=[]))
        assert [text_of(c) for c in squeezed] == [text_of(c) for c in expected]
        assert server.metrics()["galley_preemptions_total"] > 0
        never = client.post(
            "/v1/completions",
            json={"model": folder.name, "prompt": [5] * 399, "max_tokens": 2, "temperature": 0},
        )
        assert never.status_code == 400
        assert "400" in never.json()["error"]["message"]
        assert never.json()["error"]["param"] == "max_tokens"


def test_an_engine_that_cannot_start_says_why(tmp_path: Path, folder: Path) -> None:
    began = time.monotonic()
    server = Server(folder, tmp_path / "log", wait=False, max_model_len=10**9)
    with server:
        assert server.process.wait(60) == 1
    assert "max_model_len 1000000000 exceeds the model's context of 512 tokens" in server.log
    assert "Traceback" not in server.log
    assert time.monotonic() - began < 60


def test_engines_killed_while_loading_are_started_again(tmp_path: Path, folder: Path) -> None:
    """Whoever kills them is no fault of the model, not even before it was ever loaded."""
    go = tmp_path / "go"
    environ = late_engine(tmp_path, go)  # else it may be ready before it is seen
    flags: dict[str, Any] = {"threads": 1, "admin_key": "boss", "environ": environ}
    server = Server(folder, tmp_path / "log", wait=False, **flags)
    with server, server.client() as client:
        for kills in (1, 2, 3):
            until(lambda: [e for e in server.children() if e.status() != psutil.STATUS_ZOMBIE])
            for engine in server.children():
                engine.kill()
            until(lambda: server.log.count("was killed while loading") == kills)  # noqa: B023
        go.touch()
        server.wait_for_log("is ready after")
        assert server.log.count("was killed while loading, by another process") == 3
        admin = {"Authorization": "Bearer boss"}
        again = client.post("/admin/reload", json={"model": folder.name}, headers=admin)
        assert again.status_code == 200, again.text
        assert server.metrics()["galley_engine_killed_starts_total"] == 3
        answer = client.post(
            "/v1/completions",
            json={"model": folder.name, "prompt": [5, 6], "max_tokens": 3, "temperature": 0},
        )
        assert answer.status_code == 200, answer.text
