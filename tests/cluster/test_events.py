"""Any sequence of cluster events: every stream is continued exactly, and nothing is left behind."""

import asyncio
import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Coroutine, Sequence, Set
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from galley.cluster.router import PrefixRouter, cached_tokens
from galley.errors import Conflict, RequestError
from galley.service.client import EngineClient
from galley.service.links import ReplicaSource
from galley.service.quarantine import MAX_KILLED_RETRIES
from galley.service.replica import Replica
from galley.service.streams import OutputStream
from galley.service.watchdog import Watchdog
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.block_hashes import HashChain, salt_hash
from galley.types.model_info import TransferInfo
from galley.types.transfers import KVPeer, Role
from tests.cluster.toy_link import JumpingLoop, Stillborn, ToyEngine, token_at
from tests.thorough import examples

SEATS = 4
LONG = 30
"""Tokens of a prompt from which on it is computed elsewhere first."""


class Reader:
    """A caller that collects the tokens of its stream."""

    def __init__(self, request: EngineRequest, stream: OutputStream) -> None:
        self.request, self.stream = request, stream
        self.tokens: list[int] = []
        self.reason: str | None = None
        self.cancelled = False

    async def read(self) -> None:
        async for output in self.stream:
            self.tokens += output.tokens
            self.reason = output.finish_reason


class Elsewhere:
    """Computes long prompts, for as long as the test wants; see ``service/prefill.py``."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[KVPeer | None]] = {}
        self.found: dict[str, KVPeer | None] = {}

    def launch(self) -> None: ...

    async def close(self) -> None: ...

    def wants(self, request: EngineRequest, held: Sequence[Set[bytes]]) -> bool:
        return request.payload.reads >= LONG

    async def compute(self, request: EngineRequest, deadline: float) -> KVPeer | None:
        self.waiting[request.id] = asyncio.get_running_loop().create_future()
        try:
            self.found[request.id] = await self.waiting[request.id]
        finally:
            del self.waiting[request.id]
        return self.found[request.id]

    def end(self, number: int, *, found: bool) -> None:
        """End the computation of one of the prompts."""
        if self.waiting:
            [*waiting] = self.waiting.values()
            one = waiting[number % len(waiting)]
            if not one.done():
                one.set_result(KVPeer("127.0.0.1", number + 1, 16) if found else None)


class ClusterMachine(RuleBasedStateMachine):
    """Replicas of two versions of a model that are killed, cut off, added, drained and replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = JumpingLoop()
        self.numbers = itertools.count()
        self.engines: dict[str, ToyEngine] = {}
        self.cut: set[str] = set()
        self.retried_at_kill: Counter[str] = Counter()
        self.readers: list[Reader] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.elsewhere = Elsewhere()
        self.run(self.start())

    def run(self, doing: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(doing)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def start(self) -> None:
        self.client = EngineClient(
            EngineSettings(max_running=SEATS),
            "/m",
            max_queue=1000,
            replicas=0,
            remotes=[self.source("a", remote=True), self.source("a", remote=True)],
            router=PrefixRouter(seed=1),
            watchdog=lambda: Watchdog(1e9, 0),
            prefill=self.elsewhere,
        )
        self.client.launch()
        await self.client.ready()
        await self.settle()

    def source(self, version: str, *, remote: bool = False) -> ReplicaSource:
        name = f"{version}{next(self.numbers)}"

        async def connect() -> ToyEngine:
            if name in self.cut:
                raise ConnectionRefusedError(name)
            self.engines[name] = ToyEngine(version, SEATS)
            return self.engines[name]

        return ReplicaSource(name=name, connect=connect, seats=SEATS, remote=remote)

    def one(self, number: int) -> Replica:
        replicas = self.client.fleet.replicas
        return replicas[number % len(replicas)]

    @rule(
        prompt=st.lists(st.integers(1, 5), min_size=1, max_size=40),
        seed=st.integers(0, 9),
        length=st.integers(1, 6),
    )
    def submit(self, prompt: list[int], seed: int, length: int) -> None:
        async def submit() -> None:
            sampling = SamplingParams(seed=seed, max_tokens=length)
            request = EngineRequest(
                id=f"r{len(self.readers)}", payload=Generate(prompt=prompt, sampling=sampling)
            )
            reader = Reader(request, self.client.submit(request))
            self.readers.append(reader)
            self.tasks.append(asyncio.create_task(reader.read()))
            await self.settle()

        self.run(submit())

    @rule(number=st.integers(0, 9), found=st.booleans())
    def computed(self, number: int, found: bool) -> None:
        """Have a prompt computed elsewhere, or fail to."""

        async def end() -> None:
            self.elsewhere.end(number, found=found)
            await self.settle()

        self.run(end())

    @rule(number=st.integers(0, 9))
    def step(self, number: int) -> None:
        async def step() -> None:
            engine = self.engines.get(self.one(number).name)
            if engine is not None and not engine.ended:
                engine.step()
            await self.settle()

        self.run(step())

    @rule(number=st.integers(0, 9), steps=st.booleans())
    def kill(self, number: int, steps: bool) -> None:
        """Kill an engine, with or without Outputs on their way."""

        async def kill() -> None:
            replica = self.one(number)
            engine = self.engines.get(replica.name)
            if engine is None or engine.ended:
                return
            if steps:
                engine.step()
            if (retried := replica.requests.quarantine.retried) is not None:
                self.retried_at_kill[retried] += 1
            engine.kill()
            await self.settle()

        self.run(kill())

    @rule(number=st.integers(0, 9))
    def hang(self, number: int) -> None:
        async def hang() -> None:
            self.one(number).replace("it does not respond")
            await self.settle()

        self.run(hang())

    @rule(number=st.integers(0, 9))
    def partition(self, number: int) -> None:
        """Close the connection to a replica elsewhere, and refuse others for now."""

        async def partition() -> None:
            replica = self.one(number)
            if replica.source.remote:
                self.cut.add(replica.name)
                if replica.name in self.engines:
                    self.engines[replica.name].end(0)
            await self.settle()

        self.run(partition())

    @rule()
    def heal(self) -> None:
        self.cut.clear()
        self.run(asyncio.sleep(20))  # longer than the longest pause between two attempts

    @rule(number=st.integers(0, 9))
    def heal_one(self, number: int) -> None:
        self.cut.discard(self.one(number).name)
        self.run(asyncio.sleep(20))

    @rule(version=st.sampled_from("ab"), remote=st.booleans())
    def add(self, version: str, remote: bool) -> None:
        async def add() -> None:
            if len(self.client.fleet.replicas) < 5:
                self.client.fleet.add(self.source(version, remote=remote))
            await self.settle()

        self.run(add())

    @rule(number=st.integers(0, 9), steps=st.booleans())
    def drain(self, number: int, steps: bool) -> None:
        """Drain a replica, with or without Outputs on their way."""

        async def drain(name: str) -> None:
            # It may be the last one, or have left already.
            with contextlib.suppress(Conflict, RequestError):
                await self.client.drain(name)

        async def begin() -> None:
            engine = self.engines.get(self.one(number).name)
            if steps and engine is not None and not engine.ended:
                engine.step()
            self.tasks.append(asyncio.create_task(drain(self.one(number).name)))
            await self.settle()

        self.run(begin())

    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        """Stop a replica elsewhere, whose last step arrives after its requests were moved."""

        async def leave() -> None:
            replica = self.one(number)
            engine = self.engines.get(replica.name)
            if replica.source.remote and engine is not None and not engine.ended:
                engine.leave()
                engine.step()
                await self.settle()
                engine.end(0)
            await self.settle()

        self.run(leave())

    @precondition(lambda self: self.readers)
    @rule(number=st.integers(0, 99))
    def cancel(self, number: int) -> None:
        reader = self.readers[number % len(self.readers)]
        reader.cancelled = True
        reader.stream.cancel()
        self.run(self.settle())

    @invariant()
    def tokens_are_those_of_one_engine(self) -> None:
        for reader in self.readers:
            texts = (
                [token_at(reader.request, i, version) for i in range(len(reader.tokens))]
                for version in "ab"
            )
            assert reader.tokens in texts, "a text has tokens twice, lacks some, or mixes versions"

    @invariant()
    def nothing_waits_while_it_could_go_on(self) -> None:
        replicas = self.client.fleet.replicas
        served = {replica.version for replica in replicas if replica.accepts}
        for unfinished in self.client.fleet.book._unfinished.values():
            if not unfinished.replica.is_connected:
                assert unfinished.version not in served
                assert unfinished.version is not None or not served

    @invariant()
    def prompts_that_are_computed_elsewhere_wait_for_that(self) -> None:
        for engine in self.engines.values():
            for request, _ in engine.requests.values():
                if request.payload.reads >= LONG and not engine.ended:
                    assert request.kv_from == self.elsewhere.found[request.id]
        cancelled = {reader.request.id for reader in self.readers if reader.cancelled}
        assert not cancelled & self.elsewhere.waiting.keys(), "it is computed for nobody"

    def teardown(self) -> None:
        self.heal()
        self.run(self.finish())
        self.tokens_are_those_of_one_engine()
        for reader in self.readers:
            if reader.cancelled:
                continue
            if self.retried_at_kill[reader.request.id] >= MAX_KILLED_RETRIES:
                assert reader.reason in ("length", "error")
                continue
            assert reader.reason == "length", reader.request.id
            assert len(reader.tokens) == reader.request.payload.writes
        self.loop.close()

    async def finish(self) -> None:
        for number in range(200):
            self.elsewhere.end(number, found=bool(number % 2))
            for engine in self.engines.values():
                if not engine.ended:
                    engine.step()
            await self.settle()
            if all(task.done() or task.cancelled() for task in self.tasks):
                break
            await asyncio.sleep(0.1)
        cancelled = {reader.request.id for reader in self.readers if reader.cancelled}
        assert self.client.in_flight == 0, "a stream was lost"
        for engine in self.engines.values():
            assert engine.ended or not set(engine.requests) - cancelled
            assert engine.ended or not engine.requests, "an engine still works for nobody"
        await self.client.close()
        for task in self.tasks:
            task.cancel()
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError), ended


def test_a_replica_is_drained_twice_at_the_same_time() -> None:
    async def run() -> None:
        def source(name: str) -> ReplicaSource:
            async def connect() -> ToyEngine:
                return ToyEngine("same", SEATS)

            return ReplicaSource(name=name, connect=connect, seats=SEATS, remote=True)

        client = EngineClient(
            EngineSettings(),
            "/m",
            max_queue=9,
            replicas=0,
            remotes=[source("a"), source("b")],
            router=PrefixRouter(seed=1),
        )
        client.launch()
        await client.ready()
        while not all(replica.accepts for replica in client.fleet.replicas):
            await client.fleet.change()
        await asyncio.gather(client.drain("a"), client.drain("a"))
        assert [replica.name for replica in client.replicas] == ["b"]
        await client.close()

    loop = JumpingLoop()
    loop.run_until_complete(run())
    loop.close()


def test_what_waits_goes_to_the_first_replica_that_is_ready() -> None:
    async def run() -> None:
        open_now = {"a": True, "b": True}
        engines: dict[str, ToyEngine] = {}

        def source(name: str) -> ReplicaSource:
            async def connect() -> ToyEngine:
                if not open_now[name]:
                    raise ConnectionRefusedError(name)
                engines[name] = ToyEngine("same", SEATS)
                return engines[name]

            return ReplicaSource(name=name, connect=connect, seats=SEATS, remote=True)

        client = EngineClient(
            EngineSettings(max_running=SEATS),
            "/m",
            max_queue=9,
            replicas=0,
            remotes=[source("a"), source("b")],
            router=PrefixRouter(seed=1),
        )
        client.launch()
        await client.ready()
        for name in "ab":
            open_now[name] = False
            engines[name].end(0)
        await asyncio.sleep(1)
        assert client.state == "recovering"
        sampling = SamplingParams(seed=1, max_tokens=2)
        requests = [
            EngineRequest(id=f"r{i}", payload=Generate(prompt=[i + 1], sampling=sampling))
            for i in range(4)
        ]
        readers = [Reader(one, client.submit(one)) for one in requests]
        open_now["b"] = True
        await asyncio.sleep(20)
        assert set(engines["b"].requests) == {"r0", "r1", "r2", "r3"}
        engines["b"].step()
        engines["b"].step()
        await asyncio.gather(*(reader.read() for reader in readers))
        assert [len(reader.tokens) for reader in readers] == [2] * 4
        await client.close()

    loop = JumpingLoop()
    loop.run_until_complete(run())
    loop.close()


@pytest.mark.parametrize("has_others", [True, False])
def test_a_replica_whose_engine_is_killed_tries_again_for_as_long_as_it_takes(
    has_others: bool,
) -> None:
    async def run() -> None:
        starts = itertools.count()
        engines: list[ToyEngine] = []

        async def connect() -> ToyEngine:
            engines.append(ToyEngine("same", SEATS))
            if 0 < next(starts) < 9:
                engines[-1] = Stillborn("same", SEATS)
            return engines[-1]

        source = ReplicaSource(name="a", connect=connect, seats=SEATS, has_others=has_others)
        client = EngineClient(
            EngineSettings(), "/m", max_queue=9, replicas=0, remotes=[source], router=PrefixRouter()
        )
        client.launch()
        await client.ready()
        engines[0].kill()
        await asyncio.sleep(100)
        assert len(engines) == 10
        assert client.state == "ready"
        assert client.replicas[0].killed_starts == 8
        client.fleet.add(dataclasses.replace(source, name="b"))
        await asyncio.sleep(1)
        await client.drain("a")
        assert client.killed_starts == 8
        await client.close()

    loop = JumpingLoop()
    loop.run_until_complete(run())
    loop.close()


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)


def test_a_replica_fetches_what_another_one_has_cached() -> None:
    """The router moved a session because of the queue, or because its replica leaves."""
    prompt = [7] * 600
    request = EngineRequest(
        id="r", payload=Generate(prompt=prompt, sampling=SamplingParams(seed=1, max_tokens=3))
    )
    links: dict[str, ToyEngine] = {}

    def source(name: str, role: Role, port: int) -> ReplicaSource:
        async def connect() -> ToyEngine:
            links[name] = ToyEngine("a", SEATS)
            links[name].transfers = TransferInfo(role=role, host="10.0.0.1", port=port)
            return links[name]

        return ReplicaSource(name=name, connect=connect, seats=SEATS, remote=True)

    async def kv_from(blocks: int, role: Role, port: int) -> KVPeer | None:
        client = EngineClient(
            EngineSettings(max_running=SEATS),
            "/m",
            max_queue=10,
            replicas=0,
            remotes=[source("one", role, 0), source("other", "both", port)],
            cached_tokens=cached_tokens,
        )
        client.launch()
        await client.ready()
        while len(links) < 2 or not all(r.accepts for r in client.fleet.replicas):
            await asyncio.sleep(0)
        chain = HashChain(salt_hash("")).upto(prompt, blocks)
        client.fleet.replicas[1].blocks |= set(chain[:blocks])
        client.submit(request)  # without a router, to the first
        [(sent, _)] = links["one"].requests.values()
        await client.close()
        links.clear()
        return sent.kv_from

    async def check() -> None:
        assert await kv_from(20, "both", 8600) == KVPeer("10.0.0.1", 8600, 320)
        assert await kv_from(15, "both", 8600) is None  # too few to be worth it
        assert await kv_from(20, "prefill", 8600) is None  # it does not fetch
        assert await kv_from(20, "both", 0) is None  # the other one does not offer

    asyncio.run(check())
