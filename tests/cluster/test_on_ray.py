"""Clusters on Ray Serve, on several Ray nodes of this machine."""

import asyncio
import json
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster.admin import ADMIN
from tests.cluster.ray_nodes import OnRay, kill, leftovers, ray_nodes, with_children
from tests.cluster.streams import answers, asks
from tests.server.serving import Server, until
from tests.thorough import long
from tests.tools.checkpoint import make_calling

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "token"
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture(scope="module")
def address(token: Path) -> Iterator[str]:
    with ray_nodes(token) as address:
        yield address


@pytest.fixture
def cluster(address: str, token: Path, tmp_path: Path) -> Iterator[OnRay]:
    made = OnRay(tmp_path, address, token, 30_000 + secrets.randbelow(100) * 200)
    try:
        yield made
    finally:
        made.command("down", check=False)
        until(lambda: not leftovers(), 60)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights with the same tokenizer."""
    folder = tmp_path_factory.mktemp("newer") / "tiny"
    return make_calling(folder, max_position_embeddings=4096, seed=1)


def alone(folder: Path, log: Path, wanted: list[tuple[str, dict[str, object]]]) -> list[str]:
    """Return the texts of a single engine."""
    named = [f"tiny={folder}"]
    with Server(named, log, max_adapters=4, threads=1, kv_cache_tokens=32768) as server:
        return asyncio.run(answers(server.url, wanted))


@long
def test_streams_survive_replicas_that_are_killed_stopped_and_lost(
    cluster: OnRay, folder: Path, tmp_path: Path
) -> None:
    wanted = asks(20, "tiny", "tiny")
    texts = alone(folder, tmp_path / "one", wanted)
    cluster.model("tiny", folder, replicas=3)
    url = cluster.deploy()
    until(lambda: len(cluster.engines) == 3, 60)
    assert asyncio.run(answers(url, wanted)) == texts
    total, written = sum(map(len, texts)), 0
    actors, engines = cluster.actors, cluster.engines
    faults: list[Callable[[], object]] = [
        lambda: kill(actors[:1]),
        lambda: kill(engines[1:2]),
        lambda: kill(with_children(actors[2]), signal.SIGSTOP),
    ]

    async def on_piece(length: int) -> None:
        nonlocal written
        written += length
        while faults and written > total * (4 - len(faults)) / 5:
            faults.pop(0)()

    assert asyncio.run(answers(url, wanted, on_piece)) == texts
    assert not faults
    until(lambda: len(cluster.engines) >= 3, 120)
    assert asyncio.run(answers(url, wanted[:5])) == texts[:5]


@long
def test_an_update_rolls_without_mixing_releases(
    cluster: OnRay, folder: Path, newer: Path, tmp_path: Path
) -> None:
    wanted = asks(10, "tiny", "tiny", tokens=400)
    old = alone(folder, tmp_path / "old", wanted)
    new = alone(newer, tmp_path / "new", wanted)
    assert all(a != b for a, b in zip(old, new, strict=True) if not a.startswith("weather"))
    cluster.model("tiny", folder, replicas=2)
    url = cluster.deploy()
    cluster.model("tiny", newer, replicas=2)

    async def while_updated() -> int:
        rounds = 0
        update = asyncio.create_task(asyncio.to_thread(cluster.command, "deploy"))
        while not update.done():
            texts = await answers(url, wanted)
            for text, a, b in zip(texts, old, new, strict=True):
                assert text in (a, b)
            rounds += 1
        assert "removed " in await update
        return rounds

    assert asyncio.run(while_updated()) >= 1
    assert asyncio.run(answers(url, wanted)) == new
    assert cluster.command("status").count("RUNNING") == 2


@long
def test_a_canary_gets_its_share_and_its_own_metrics(
    cluster: OnRay, folder: Path, newer: Path
) -> None:
    settings = {"kv_cache_tokens": 32768, "threads": 1, "max_adapters": 4, "speculation": "off"}
    canary = {"model": str(newer), "settings": settings, "share": 25, "resources": {"cpus": 0.5}}
    cluster.model("tiny", folder, canary=canary)
    url = cluster.deploy()
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 20, "temperature": 0}

    def text(**headers: str) -> str:
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    stable = text(**{"x-galley-release": "stable"})
    other = text(**{"x-galley-release": "canary"})
    assert stable != other
    got = [text() for _ in range(80)]
    assert set(got) == {stable, other}
    assert 8 <= got.count(other) <= 32
    page = httpx.get(f"{url}/metrics").text
    counted = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("galley_release_sequences_total{")
    ]
    assert sorted(counted) == sorted([got.count(stable) + 1.0, got.count(other) + 1.0])
    refused = httpx.post(
        f"{url}/v1/completions", json=body, headers={"x-galley-release": "beta"}, timeout=60
    )
    assert refused.status_code == 400
    # A release that cannot start changes nothing.
    cluster.content["models"]["tiny"]["model"] = "/nowhere"
    said = cluster.command("deploy", check=False)
    assert "cannot be started" in said
    assert text(**{"x-galley-release": "stable"}) == stable


@long
def test_a_model_sleeps_and_grows_with_its_load(
    cluster: OnRay, folder: Path, tmp_path: Path
) -> None:
    scale = {"min": 0, "max": 2, "up_seconds": 1, "down_seconds": 5, "zero_seconds": 5}
    cluster.model("tiny", folder, replicas=scale, slo={"load": 0.05})
    url = cluster.deploy()
    until(lambda: not cluster.engines, 60)
    assert httpx.get(f"{url}/ready").status_code == 200
    wanted = asks(20, "tiny", "tiny", tokens=1500)
    texts = alone(folder, tmp_path / "one", wanted)
    most = 0

    async def load() -> None:
        nonlocal most
        deadline = time.monotonic() + 120
        while most < 2 and time.monotonic() < deadline:
            running = asyncio.create_task(answers(url, wanted))
            while not running.done():
                await asyncio.sleep(0.5)
                most = max(most, await asyncio.to_thread(lambda: len(cluster.engines)))
            assert await running == texts

    asyncio.run(load())
    assert most == 2
    until(lambda: not cluster.engines, 120)


@long
def test_the_server_for_ray_llm_answers_the_calls_of_its_engines(
    address: str, folder: Path
) -> None:
    """Through a plain deployment: ``ray.serve.llm`` cannot be imported without vLLM or SGLang."""
    import ray
    from ray import serve

    from galley.cluster.ray_llm import GalleyServer

    config = SimpleNamespace(
        model_loading_config={"model_id": "org/tiny", "model_source": str(folder)},
        engine_kwargs={"threads": 1, "kv_cache_tokens": 4096, "max_adapters": 2},
        deployment_config={"num_replicas": 1},
    )
    ray.init(address=address, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    deployment = serve.deployment(GalleyServer, **GalleyServer.get_deployment_options(config))
    handle = serve.run(deployment.bind(llm_config=config), name="llm", route_prefix=None)

    def call(method: str, request: object) -> list[Any]:
        return list(handle.options(method_name=method, stream=True).remote(request))

    chat = {"model": "org/tiny", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 5}
    chat |= {"temperature": 0, "ignore_eos": True}
    [whole] = call("chat", chat)
    assert whole["usage"]["completion_tokens"] == 5
    events = call("chat", chat | {"stream": True})
    assert all(one.startswith("data: ") and one.endswith("\n\n") for one in events)
    assert events[-1] == "data: [DONE]\n\n"
    pieces = [json.loads(one[6:])["choices"][0]["delta"] for one in events[:-1]]
    said = "".join(piece.get("content") or "" for piece in pieces)
    assert said == whole["choices"][0]["message"]["content"]
    [text] = call("completions", {"model": "org/tiny", "prompt": [5, 6], "max_tokens": 2})
    assert text["object"] == "text_completion"
    [tokens] = call("tokenize", {"model": "org/tiny", "prompt": "a b"})
    [back] = call("detokenize", {"model": "org/tiny", "tokens": tokens["tokens"]})
    assert back["prompt"] == "a b"
    [refused] = call("embeddings", {"model": "org/tiny", "input": "a"})
    assert "embed" in refused["error"]["message"]
    lora = SimpleNamespace(model_id="org/tiny:a", local_path=str(folder.parent / "adapter"))
    for _ in range(2):
        handle.resolve_lora.remote(lora).result()
    [adapted] = call("completions", {"model": "a", "prompt": [5, 6], "max_tokens": 2})
    assert adapted["model"] == "org/tiny:a"
    handle.reset_prefix_cache.remote().result()
    handle.check_health.remote().result()
    assert handle.routing_stats.remote().result() == {"requests": 0}
    serve.delete("llm")
    ray.shutdown()
    until(lambda: not leftovers(), 60)


def drain_one(url: str) -> None:
    """Drain a replica that is ready, as soon as there is another one."""

    def drained() -> bool:
        [model] = httpx.get(f"{url}/admin/replicas", headers=ADMIN, timeout=60).json()["models"]
        ready = [one["name"] for one in model["replicas"] if one["state"] == "ready"]
        body = {"model": "tiny", "replica": ready[0] if ready else "none"}
        answer = httpx.post(f"{url}/admin/drain", json=body, headers=ADMIN, timeout=200)
        return answer.status_code == 200

    until(drained, 150)


@long
def test_64_streams_survive_3_minutes_of_kills_and_an_update(
    cluster: OnRay, folder: Path, newer: Path, tmp_path: Path
) -> None:
    """A random replica is killed every 5 s; one is drained, one stopped, and an update rolls."""
    wanted = asks(64, "tiny", "tiny", tokens=400)
    old = alone(folder, tmp_path / "old", wanted)
    new = alone(newer, tmp_path / "new", wanted)
    cluster.model("tiny", folder, replicas=3)
    url = cluster.deploy()
    chance = random.Random(7)
    done = {"killed": 0, "stopped": 0, "drained": 0, "rounds": 0, "old": 0, "new": 0}

    def drain() -> None:
        drain_one(url)
        done["drained"] += 1

    async def break_things() -> None:
        end = time.monotonic() + 180
        stopped: list[psutil.Process] = []
        others: list[asyncio.Task[Any]] = []
        draining = False
        while time.monotonic() < end:
            await asyncio.sleep(5)
            serving = await asyncio.to_thread(lambda: cluster.serving)
            serving = [one for one in serving if one not in stopped]
            if not serving:
                continue
            one = chance.choice(serving)
            if done["killed"] >= 4 and not done["stopped"]:
                kill(with_children(one), signal.SIGSTOP)
                stopped.append(one)
                done["stopped"] += 1
            else:
                kill(with_children(one) if chance.random() < 0.5 else with_children(one)[:1])
                done["killed"] += 1
            if done["killed"] == 3 and not draining:
                draining = True
                others.append(asyncio.create_task(asyncio.to_thread(drain)))
            if time.monotonic() > end - 120 and cluster.content["models"]["tiny"]["model"] != str(
                newer
            ):
                cluster.model("tiny", newer, replicas=3)
                others.append(asyncio.create_task(asyncio.to_thread(cluster.command, "deploy")))
        await asyncio.gather(*others)

    async def run() -> None:
        breaking = asyncio.create_task(break_things())
        while not breaking.done():
            texts = await answers(url, wanted)
            for text, a, b in zip(texts, old, new, strict=True):
                assert text in (a, b)
                done["old"] += text == a
                done["new"] += text == b
            done["rounds"] += 1
        await breaking

    asyncio.run(run())
    print(done)
    # Where starting a replica takes longer than 5 s, there is not always one to kill.
    assert done["killed"] >= 8
    assert done["stopped"] == 1
    assert done["drained"] >= 1
    assert done["new"]
    until(lambda: len(cluster.serving) == 3, 120)
    assert asyncio.run(answers(url, wanted)) == new

    def free() -> bool:
        [model] = httpx.get(f"{url}/admin/replicas", headers=ADMIN).json()["models"]
        states = [(one["state"], one["kv_usage"], one["running"]) for one in model["replicas"]]
        return states == [("ready", 0.0, 0)] * 3 and not any(
            one["requests"] for one in model["releases"]
        )

    until(free, 60)
    assert len(cluster.engines) == 3
