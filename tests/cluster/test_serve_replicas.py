"""``galley serve --replicas``: streams in flight while replicas are killed, stopped and drained."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from galley.errors import SettingsError
from galley.settings.config import Settings
from tests.cluster.admin import ADMIN, ADMIN_KEY, replicas
from tests.cluster.streams import answers, asks
from tests.server.refusals import error_of
from tests.server.serving import Server, events, until
from tests.thorough import long

pytestmark = pytest.mark.xdist_group("cluster")


def cluster(folder: Path, log: Path, replicas: int, **settings: Any) -> Server:
    return Server(
        folder,
        log,
        replicas=replicas,
        adapter=f"a={folder.parent / 'adapter'}",
        kv_cache_tokens=32768,
        threads=1,
        admin_key=ADMIN_KEY,
        **settings,
    )


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with cluster(folder, tmp_path_factory.mktemp("server") / "log", 3, stall_seconds=2) as running:
        yield running


def alive(server: Server) -> list[psutil.Process]:
    return [one for one in server.children() if one.status() != psutil.STATUS_ZOMBIE]


def drain(server: Server, name: str) -> httpx.Response:
    body = {"model": "tiny", "replica": name}
    return httpx.post(f"{server.url}/admin/drain", json=body, headers=ADMIN, timeout=60)


def test_streams_survive_a_killed_a_stopped_and_a_drained_replica(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    wanted = asks(15, "tiny", "tiny:a")
    with cluster(folder, tmp_path / "log", 1) as single:
        alone = asyncio.run(answers(single.url, wanted))
    assert len(set(alone)) > 10

    written = 0
    total = sum(map(len, alone))
    drained: list[asyncio.Future[Any]] = []

    def drain_in_time() -> Any:
        """Drain a replica as soon as there is another that is ready."""
        return until(
            lambda: answer if (answer := drain(server, "2")).status_code != 409 else None, 60
        )

    faults: list[Callable[[], object]] = [
        lambda: os.kill(engines["0"], signal.SIGKILL),
        lambda: os.kill(engines["1"], signal.SIGSTOP),
        lambda: drained.append(asyncio.ensure_future(asyncio.to_thread(drain_in_time))),
    ]

    async def on_piece(length: int) -> None:
        """Let the faults happen after a sixth, a third and half of all text."""
        nonlocal written
        written += length
        while faults and written > total * (4 - len(faults)) / 6:
            faults.pop(0)()

    async def with_faults() -> list[str]:
        texts = await answers(server.url, wanted, on_piece)
        assert (await drained[0]).status_code == 200
        return texts

    engines = {name: one["pid"] for name, one in replicas(server).items()}
    assert set(engines.values()) == {child.pid for child in server.children()}
    assert len(engines) == 3
    assert asyncio.run(with_faults()) == alone
    until(lambda: server.metrics()["galley_kv_blocks{state=used}"] == 0)
    assert list(replicas(server)) == ["0", "1"]
    # Those that were killed have been replaced, and the drained one has not.
    until(lambda: all(one["state"] == "ready" for one in replicas(server).values()))
    assert len(server.children()) == 2
    assert server.metrics()["galley_engine_restarts_total"] >= 2


def test_a_prefix_is_computed_once_and_each_replica_is_measured(
    folder: Path, tmp_path: Path
) -> None:
    prompt = [5 + i % 90 for i in range(320)]
    with cluster(folder, tmp_path / "log", 2) as server, server.client() as client:
        for last in range(4):
            body = {"model": "tiny", "prompt": [*prompt, 7 + last], "max_tokens": 2}
            assert client.post("/v1/completions", json=body).status_code == 200
        metrics = server.metrics()
        hits = [
            metrics[f"galley_replica_prefix_cache_hit_tokens_total{{replica={name}}}"]
            for name in "01"
        ]
        assert sorted(hits) == [0, 3 * 320]
        assert metrics["galley_prefix_cache_hit_tokens_total"] == 3 * 320
        assert metrics["galley_replica_ready{replica=0}"] == 1
        body = {"model": "tiny", "replica": "7"}
        wrong = client.post("/admin/drain", json=body, headers=ADMIN)
        assert "'7'" in error_of(wrong, 400)["message"]
        assert drain(server, "0").json()["replicas"][0]["name"] == "1"
        assert "no other replica" in error_of(drain(server, "1"), 409)["message"]


def test_a_drained_replica_hands_its_keys_and_values_on(folder: Path, tmp_path: Path) -> None:
    """Before it ends, the replicas that continue its texts have fetched what it had computed."""
    token = tmp_path / "token"
    token.write_text("a secret of both replicas")
    both = cluster(folder, tmp_path / "log", 2, role="both", cluster_token_file=token)
    prompt = [5 + i % 90 for i in range(321)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 600, "seed": 1, "ignore_eos": True}
    with both as server, server.client() as client:
        alone = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert server.metrics()["galley_kv_transfer_hit_tokens_total"] == 0
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            pieces = (json.loads(data) for data in events(answer) if data != "[DONE]")
            text = next(pieces)["choices"][0]["text"]
            [busy] = [name for name, one in replicas(server).items() if one["running"]]
            assert drain(server, busy).status_code == 200
            text += "".join(piece["choices"][0]["text"] for piece in pieces)
        assert text == alone
        metrics = server.metrics()
        assert metrics["galley_kv_transfer_hit_tokens_total"] >= 320
        assert metrics["galley_kv_transfer_fetch_failures_total"] == 0


def test_replicas_that_would_wait_for_each_other_are_refused() -> None:
    with pytest.raises(SettingsError, match="replicas is 2"):
        Settings.load({}, environ={"GALLEY_MODELS": "a=x b=y", "GALLEY_REPLICAS": "2"})
    with pytest.raises(SettingsError, match="--replica HOST:PORT"):
        Settings(replicas=0)


def test_an_update_mixes_no_texts_and_loses_none(folder: Path, tmp_path: Path) -> None:
    wanted = asks(5, "tiny", "tiny:a")
    with cluster(folder, tmp_path / "log", 2) as server:
        before = asyncio.run(answers(server.url, wanted))
        engines = {child.pid for child in server.children()}
        updates: list[asyncio.Future[httpx.Response]] = []

        def update() -> httpx.Response:
            url = f"{server.url}/admin/reload"
            return httpx.post(url, json={"model": "tiny"}, headers=ADMIN, timeout=120)

        async def on_piece(_: int) -> None:
            if not updates:
                updates.append(asyncio.ensure_future(asyncio.to_thread(update)))

        async def while_updated() -> list[str]:
            texts = await answers(server.url, wanted, on_piece)
            assert (await updates[0]).status_code == 200
            return texts

        assert asyncio.run(while_updated()) == before
        assert asyncio.run(answers(server.url, wanted)) == before
        until(lambda: len(server.children()) == 2)
        assert not engines & {child.pid for child in server.children()}


@long
def test_64_streams_survive_3_minutes_of_kills(folder: Path, tmp_path: Path) -> None:
    """A random replica is killed every 5 s; every sixth time it is stopped instead.

    After a minute an update rolls, and after two a replica is drained.
    """
    wanted = asks(64, "tiny", "tiny:a", tokens=400)
    with cluster(folder, tmp_path / "one", 1) as single:
        alone = asyncio.run(answers(single.url, wanted))
    chance = random.Random(7)
    with cluster(folder, tmp_path / "three", 3, stall_seconds=3) as server:
        changes: list[asyncio.Task[int]] = []

        def update() -> int:
            url = f"{server.url}/admin/reload"
            return httpx.post(url, json={"model": "tiny"}, headers=ADMIN, timeout=120).status_code

        def drain_one() -> int:
            def done() -> int:
                code = drain(server, "2").status_code
                return 0 if code == 409 else code  # no other is ready

            return until(done, 60)

        async def break_things() -> None:
            end = time.monotonic() + 180
            count = 0
            while time.monotonic() < end:
                await asyncio.sleep(5)
                running = alive(server)
                stops = count % 6 == 5
                chance.choice(running).send_signal(signal.SIGSTOP if stops else signal.SIGKILL)
                count += 1
                if change := {12: update, 24: drain_one}.get(count):
                    changes.append(asyncio.create_task(asyncio.to_thread(change)))
            assert await asyncio.gather(*changes) == [200, 200]

        async def run() -> int:
            breaking = asyncio.create_task(break_things())
            rounds = 0
            while not breaking.done():
                assert await answers(server.url, wanted) == alone
                rounds += 1
            await breaking
            return rounds

        rounds = asyncio.run(run())
        restarts = server.metrics()["galley_engine_restarts_total"]
        print(f"{rounds} rounds of 64 streams, {restarts:g} engines replaced, none lost")
        until(lambda: all(one["state"] == "ready" for one in replicas(server).values()))
        until(lambda: server.metrics()["galley_kv_blocks{state=used}"] == 0)
        assert len(alive(server)) == 2
        assert restarts >= 20
