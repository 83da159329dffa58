"""``galley replica`` on other addresses: streams while connections and whole replicas are lost."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from galley.cluster.channel import greet
from galley.cluster.members import Release, write_members
from tests.cluster.admin import ADMIN_KEY, replicas
from tests.cluster.replica import Replica
from tests.cluster.streams import answers, asks
from tests.server.refusals import error_of
from tests.server.serving import Server, events, until
from tests.thorough import long

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "token"
    path.write_text("a secret that all machines have\n")
    return path


def server_of(folder: Path, log: Path, token: Path, *replicas: Replica, **settings: Any) -> Server:
    return Server(
        [str(folder), *(part for one in replicas for part in ("--replica", one.address))],
        log,
        adapter=f"a={folder.parent / 'adapter'}",
        threads=1,
        kv_cache_tokens=32768,
        cluster_token_file=token,
        admin_key=ADMIN_KEY,
        stall_seconds=2,
        **settings,
    )


@pytest.fixture
def two(folder: Path, token: Path, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    with (
        Replica(folder, tmp_path / "a.log", token) as a,
        Replica(folder, tmp_path / "b.log", token) as b,
    ):
        yield a, b


def states(server: Server) -> dict[str, str]:
    return {name: one["state"] for name, one in replicas(server).items()}


def test_streams_survive_replicas_elsewhere(
    two: tuple[Replica, Replica], folder: Path, token: Path, tmp_path: Path
) -> None:
    """One machine is lost, one does not answer any more, and later one leaves in time."""
    a, b = two
    wanted = asks(15, "tiny", "tiny:a")
    with server_of(folder, tmp_path / "log", token, a, b) as server:
        os.kill(b.process.pid, signal.SIGSTOP)  # so that it is known what is alone
        calm = asyncio.run(answers(server.url, wanted))
        os.kill(b.process.pid, signal.SIGCONT)
        until(lambda: set(states(server).values()) == {"ready"})
        total, written = sum(map(len, calm)), 0
        faults: list[Callable[[], object]] = [
            lambda: a.signal(signal.SIGKILL),
            lambda: b.signal(signal.SIGSTOP),
        ]

        async def on_piece(length: int) -> None:
            nonlocal written
            written += length
            while faults and written > total * (3 - len(faults)) / 4:
                faults.pop(0)()

        assert asyncio.run(answers(server.url, wanted, on_piece)) == calm
        assert states(server)[a.address] == "recovering"
        b.signal(signal.SIGCONT)
        until(lambda: states(server)[b.address] == "ready")

        faults = [lambda: b.process.send_signal(signal.SIGTERM)]

        async def leave(_: int) -> None:
            while faults:
                faults.pop()()

        assert asyncio.run(answers(server.url, wanted, leave)) == calm
        assert b.process.wait(30) == 0
        # A machine that comes back is used again, without a restart of the server.
        with Replica(folder, tmp_path / "again.log", token, a.port):
            until(lambda: states(server)[a.address] == "ready")
            assert asyncio.run(answers(server.url, wanted[:5])) == calm[:5]
        until(lambda: server.metrics()["galley_requests_running"] == 0)


@long
def test_a_stopped_replica_hands_its_keys_and_values_on(
    folder: Path, token: Path, tmp_path: Path
) -> None:
    """It stays although the engine that is to fetch them is stopped for a while."""
    prompt = [5 + i % 90 for i in range(321)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 600, "seed": 1, "ignore_eos": True}
    with (
        Replica(folder, tmp_path / "a.log", token, more="--role both") as a,
        Replica(folder, tmp_path / "b.log", token, more="--role both") as b,
        server_of(folder, tmp_path / "log", token, a, b, replicas=0, role="both") as server,
        server.client() as client,
    ):
        until(lambda: set(states(server).values()) == {"ready"})
        alone = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            pieces = (json.loads(data) for data in events(answer) if data != "[DONE]")
            text = next(pieces)["choices"][0]["text"]
            [busy] = [name for name, one in replicas(server).items() if one["running"]]
            old, new = (a, b) if a.address == busy else (b, a)
            [engine] = psutil.Process(new.process.pid).children()
            engine.send_signal(signal.SIGSTOP)
            old.process.send_signal(signal.SIGTERM)
            until(lambda: states(server)[busy] == "draining")
            with pytest.raises(subprocess.TimeoutExpired):
                old.process.wait(1.5)  # as long as it may, it waits for others to fetch
            engine.send_signal(signal.SIGCONT)
            text += "".join(piece["choices"][0]["text"] for piece in pieces)
        assert text == alone
        assert old.process.wait(30) == 0
        metrics = server.metrics()
        assert metrics["galley_kv_transfer_hit_tokens_total"] >= 320
        assert metrics["galley_kv_transfer_fetch_failures_total"] == 0


def check_listed(a: Replica, folder: Path, token: Path, tmp_path: Path, texts: list[str]) -> None:
    """Check that a server uses the replicas in a file, and follows its changes."""
    file = tmp_path / "replicas.json"
    write_members(file, {"tiny": {"old": Release(100)}})
    listed = {"replicas": 0, "replica_file": file}
    with server_of(folder, tmp_path / "listed", token, wait=False, **listed) as server:
        write_members(file, {"tiny": {"old": Release(100, [a.address])}})
        server.wait_for_log("is ready after")
        assert asyncio.run(answers(server.url, asks(5, "tiny", "tiny:a"))) == texts
        body = {"model": "tiny", "prompt": [5], "max_tokens": 1}
        with server.client(headers={"x-galley-release": "new"}) as client:
            error = error_of(client.post("/v1/completions", json=body), 400)
        assert "this model's releases: old" in error["message"]
        with server.client(headers={"x-galley-release": "old"}) as client:
            assert client.post("/v1/completions", json=body | {"n": 2}).status_code == 200
        metrics = server.metrics()
        assert metrics["galley_release_sequences_total{finish_reason=length,release=old}"] >= 3
        write_members(file, {"tiny": {"old": Release(100)}})
        until(lambda: not states(server))


def test_a_server_without_engines_of_its_own(folder: Path, token: Path, tmp_path: Path) -> None:
    with Replica(folder, tmp_path / "a.log", token) as a:
        with server_of(folder, tmp_path / "log", token, a, replicas=0) as server:
            assert server.children() == []
            texts = asyncio.run(answers(server.url, asks(5, "tiny", "tiny:a")))
            assert all(text.endswith(")") for text in texts)
        check_listed(a, folder, token, tmp_path, texts)
        other = tmp_path / "other"
        other.write_text("a secret of another cluster")
        refused = server_of(folder, tmp_path / "log2", other, a, replicas=0, wait=False)
        with refused:
            assert refused.process.wait(60) == 1
        assert "the token of cluster_token_file is another one" in refused.log
        assert "Traceback" not in refused.log + (tmp_path / "a.log").read_text()


def test_those_without_the_token_keep_no_server_out(
    folder: Path, token: Path, tmp_path: Path
) -> None:
    secret = token.read_bytes().strip()

    async def greeted(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        channel = await greet(reader, writer, secret)
        first = await anext(channel.frames())
        channel.abort()
        return len(first)

    with Replica(folder, tmp_path / "replica", token) as replica:
        idle = [socket.create_connection(("127.0.0.1", replica.port)) for _ in range(100)]
        assert asyncio.run(greeted(replica.port))
        for one in idle:
            one.close()
