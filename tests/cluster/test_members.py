"""Replicas that a file lists: they join, leave, sleep, and divide requests among releases."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from galley.cluster.members import Release, following, read_members, write_members
from galley.cluster.router import PrefixRouter
from galley.errors import RequestError, SettingsError
from galley.links.access import Access
from galley.service.client import EngineClient
from galley.service.fleet import Fleet
from galley.service.links import ReplicaSource
from galley.service.releases import Releases
from galley.service.streams import OutputStream
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Generate, Output, SamplingParams
from tests.cluster.toy_link import JumpingLoop, ToyEngine, token_at

SEATS = 4


class Cluster:
    """A client whose replicas a test lists, and their engines by name."""

    def __init__(self) -> None:
        self.engines: dict[str, ToyEngine] = {}
        self.finished: list[tuple[str, str, int]] = []
        self.release = ""

        async def members(fleet: Fleet) -> None:
            await asyncio.Event().wait()

        self.client = EngineClient(
            EngineSettings(max_running=SEATS),
            "/m",
            max_queue=100,
            replicas=0,
            members=members,
            router=PrefixRouter(seed=1),
            on_finished=lambda release, reason, tokens, *_: self.finished.append(
                (release, reason, tokens)
            ),
        )
        self.client.launch()

    def list(self, *names: str, shares: dict[str, float], sleeps: bool = False) -> None:
        """List replicas, whose names are RELEASE/NUMBER."""
        releases = self.client.fleet.releases
        releases.shares, releases.sleeping = shares, {"a"} if sleeps else set()
        self.client.fleet.follow([self._source(name) for name in names])

    def _source(self, name: str) -> ReplicaSource:
        release = name.partition("/")[0]

        async def connect() -> ToyEngine:
            if name in self.engines:
                raise ConnectionRefusedError(name)
            self.engines[name] = ToyEngine(release, SEATS)
            self.engines[name].release = self.release or release
            return self.engines[name]

        return ReplicaSource(name=name, connect=connect, seats=SEATS, remote=True, release=release)

    def submit(self, number: int, length: int = 3, release: str = "") -> OutputStream:
        return self.client.submit(asked(number, length, release))

    def step(self) -> None:
        for engine in self.engines.values():
            if not engine.ended:
                engine.step()


def asked(number: int, length: int = 3, release: str = "", choice: int = 0) -> EngineRequest:
    sampling = SamplingParams(seed=number, max_tokens=length)
    payload = Generate(prompt=[number + 1], sampling=sampling)
    return EngineRequest(id=f"r{number}-{choice}", payload=payload, release=release)


def text(number: int, length: int, version: str) -> list[int]:
    return [token_at(asked(number), i, version) for i in range(length)]


async def read(stream: OutputStream) -> list[int]:
    return [token async for output in stream for token in output.tokens]


async def last(stream: OutputStream) -> Output:
    return [output async for output in stream][-1]


def run(case: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        cluster = Cluster()
        try:
            await case(cluster)
        finally:
            await cluster.client.close()

    loop = JumpingLoop()
    loop.run_until_complete(whole())
    loop.close()


async def settled() -> None:
    await asyncio.sleep(1)


def test_a_replica_that_is_no_longer_listed_leaves_its_streams_to_others() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", shares={"a": 100})
        await cluster.client.ready()
        readers = [asyncio.create_task(read(cluster.submit(i))) for i in range(3)]
        await settled()
        cluster.step()
        cluster.list("a/1", "a/2", shares={"a": 100})
        await settled()
        cluster.list("a/2", shares={"a": 100})
        await settled()
        assert cluster.engines["a/1"].ended
        assert [one.name for one in cluster.client.replicas] == ["a/2"]
        for _ in range(3):
            cluster.step()
            await settled()
        assert await asyncio.gather(*readers) == [text(i, 3, "a") for i in range(3)]
        assert cluster.finished == [("a", "length", 3)] * 3

    run(case)


def test_a_text_that_no_other_replica_may_continue_is_completed_before_its_replica_leaves() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", shares={"a": 100})
        await cluster.client.ready()
        reader = asyncio.create_task(read(cluster.submit(0)))
        await settled()
        cluster.step()
        await settled()
        cluster.list("b/1", shares={"b": 100})
        await settled()
        assert {one.name: one.state for one in cluster.client.replicas} == {
            "a/1": "draining",
            "b/1": "ready",
        }
        assert [(one.name, one.requests) for one in cluster.client.releases] == [("a", 1), ("b", 0)]
        for _ in range(2):
            cluster.step()
            await settled()
        assert await reader == text(0, 3, "a")
        assert [one.name for one in cluster.client.replicas] == ["b/1"]

    run(case)


def test_texts_wait_for_a_replica_of_their_release_if_all_have_gone() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", shares={"a": 100})
        await cluster.client.ready()
        begun = asyncio.create_task(read(cluster.submit(0)))
        await settled()
        cluster.step()
        await settled()
        cluster.engines["a/1"].end(0)
        cluster.list(shares={"a": 100})
        await settled()
        assert cluster.client.state == "recovering"
        new = asyncio.create_task(read(cluster.submit(1)))
        cluster.list("b/1", shares={"a": 50, "b": 50})
        await settled()
        [a, b] = cluster.client.releases
        assert (a.name, a.requests, a.waiting) == ("a", 1, 1)
        assert (b.name, b.requests, b.waiting) == ("b", 1, 0)
        cluster.list("b/1", "a/2", shares={"a": 50, "b": 50})
        for _ in range(3):
            await settled()
            cluster.step()
        assert await begun == text(0, 3, "a")
        assert await new == text(1, 3, "b")
        assert cluster.client.in_flight == 0

    run(case)


def test_texts_of_a_release_that_was_removed_end_with_an_error() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", shares={"a": 100})
        await cluster.client.ready()
        begun = asyncio.create_task(last(cluster.submit(0)))
        await settled()
        cluster.step()
        await settled()
        cluster.list("a/1", "b/1", shares={"a": 0, "b": 100})
        await settled()
        cluster.list("b/1", shares={"b": 100})
        await settled()
        assert not begun.done()
        cluster.engines["a/1"].end(0)
        await settled()
        assert "the release that had begun the answer was removed" in ((await begun).error or "")
        assert cluster.client.in_flight == 0

    run(case)


def test_a_replica_of_another_release_at_an_address_that_is_listed_gets_no_requests() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", shares={"a": 100})
        await cluster.client.ready()
        old = cluster.engines.pop("a/1")
        cluster.release = "b"
        old.end(0)
        for _ in range(20):
            await settled()
        other = cluster.engines.pop("a/1")
        assert other.ended
        reader = asyncio.create_task(read(cluster.submit(0)))
        await settled()
        assert not other.requests
        cluster.release = "a"
        for _ in range(20):
            await settled()
            cluster.step()
        assert await reader == text(0, 3, "a")

    run(case)


def test_a_model_without_replicas_accepts_requests_if_it_sleeps() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", shares={"a": 100}, sleeps=True)
        await cluster.client.ready()
        cluster.list(shares={"a": 100}, sleeps=True)
        await settled()
        assert cluster.client.state == "ready"
        assert not cluster.client.replicas
        reader = asyncio.create_task(read(cluster.submit(0)))
        await settled()
        assert [(one.name, one.waiting) for one in cluster.client.releases] == [("a", 1)]
        cluster.list("a/2", shares={"a": 100}, sleeps=True)
        for _ in range(3):
            await settled()
            cluster.step()
        assert await reader == text(0, 3, "a")

    run(case)


def test_requests_are_divided_by_shares_and_answers_are_not() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", "b/1", shares={"a": 75, "b": 25})
        await cluster.client.ready()
        await settled()
        for number in range(80):
            cluster.submit(number)
        got = Counter(
            name for name, engine in cluster.engines.items() for _ in range(len(engine.requests))
        )
        assert 12 <= got["b/1"] <= 30
        cluster.client.submit_all([asked(100, choice=choice) for choice in range(8)])
        of_answer = {
            name
            for name, engine in cluster.engines.items()
            for one in engine.requests
            if one.startswith("r100-")
        }
        assert len(of_answer) == 1

    run(case)


def test_a_request_chooses_its_release() -> None:
    async def case(cluster: Cluster) -> None:
        cluster.list("a/1", "b/1", shares={"a": 100, "b": 0})
        await cluster.client.ready()
        await settled()
        for number in range(20):
            cluster.submit(number, release="b" if number % 2 else "")
        assert [len(engine.requests) for engine in cluster.engines.values()] == [10, 10]
        with pytest.raises(RequestError, match=r"'c'; this model's releases: a, b"):
            cluster.submit(99, release="c")

    run(case)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    members = {"chat": {"stable": Release(90, ["10.0.0.7:8500"]), "canary": Release(10, [], True)}}
    write_members(path, members)
    assert read_members(path) == members


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("chat: [10.0.0.7:8500]", "Expected `object`"),
        ("chat: {stable: {share: 101}}", "<= 100"),
        ("chat: {stable: {replica: []}}", "unknown field `replica`"),
        ("chat: {stable: {replicas: [here]}}", "not HOST:PORT"),
        ("chat: {a: {replicas: ['h:1']}, b: {replicas: ['h:1']}}", "h:1 twice"),
        ("chat: {'a b': {}}", "matching regex"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        read_members(path)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({}, "replicas of 0"),
        ({"replicas": 0, "replica": ("h:1",)}, "leave out replica"),
        ({"replicas": 0, "response_cache": "exact"}, "response cache"),
    ],
)
def test_settings_that_contradict_a_file_are_refused(others: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(replica_file="replicas.yaml", **others)


def test_a_file_is_followed_after_a_mistake_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "replicas.json"
    listed: list[list[str]] = []

    def follow(sources: list[ReplicaSource]) -> None:
        listed.append([one.name for one in sources])
        if len(listed) == 1:
            raise RuntimeError("this is a mistake in the program")

    async def case() -> None:
        fleet: Any = SimpleNamespace(releases=Releases(), follow=follow, has_leaving=False)
        task = asyncio.create_task(following(path, "m", Access(b"token", None, None), 1)(fleet))
        for port in (1, 2):
            write_members(path, {"m": {"a": Release(replicas=[f"h:{port}"])}})
            await settled()
        assert not task.done()
        task.cancel()
        assert listed == [["h:1"], ["h:2"]]

    loop = JumpingLoop()
    loop.run_until_complete(case())
    loop.close()


def test_a_file_that_cannot_be_used_leaves_the_replicas_as_they_are_while_some_are_leaving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "replicas.json"
    listed: list[list[str]] = []

    def follow(sources: list[ReplicaSource]) -> None:
        listed.append([one.name for one in sources])

    async def case() -> None:
        fleet: Any = SimpleNamespace(releases=Releases(), follow=follow, has_leaving=True)
        task = asyncio.create_task(following(path, "m", Access(b"token", None, None), 1)(fleet))
        write_members(path, {"m": {"a": Release(replicas=["h:1"])}})
        await settled()
        path.write_text("m: [")
        listed.clear()
        await settled()
        task.cancel()

    loop = JumpingLoop()
    loop.run_until_complete(case())
    loop.close()
    assert len(listed) > 1
    assert listed == [["h:1"]] * len(listed)
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1
