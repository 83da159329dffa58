"""Replicas behind real sockets: any sequence of events leaves the texts of one engine, and nothing else."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from galley.cluster.router import PrefixRouter, cached_tokens
from galley.engine.loaders import load_engine
from galley.errors import Conflict, RequestError
from galley.service.fleet import Fleet
from galley.service.protocol import Engine
from galley.service.requests import expand
from galley.service.streams import OutputStream
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.model_info import TransferInfo
from tests.cluster.nodes import SEATS, Node, PatientLoop, SteppedEngine, ended, new_client, settled
from tests.cluster.toy_link import ToyEngine, token_at
from tests.thorough import examples
from tests.tools.checkpoint import make_calling

_MOST_NODES: Final = 4
_SHARED: Final = [7] * 40
"""How prompts begin, so that caches are of use."""


class Model:
    """Two versions of a model, and the texts that one engine writes with each."""

    def __init__(self, folder: Path) -> None:
        self._folders = {
            version: make_calling(folder / version, initializer_range=size)
            for version, size in (("a", 0.25), ("b", 0.3))
        }
        self._alone = {version: self._loaded(version) for version in self._folders}
        self._free: dict[str, list[Engine]] = {version: [] for version in self._folders}
        self._texts: dict[tuple[object, ...], list[int]] = {}
        self.info = self._alone["a"].info

    def node(self, version: str) -> Node:
        """Return a replica that is not started yet."""

        def engine() -> SteppedEngine:
            free = self._free[version]
            return SteppedEngine(free.pop() if free else self._loaded(version), free.append)

        return Node(engine, version)

    def text(self, version: str, tail: tuple[int, ...], seed: int, length: int) -> list[int]:
        """Return the text that one engine writes alone."""
        key = (version, tail, seed, length)
        if key not in self._texts:
            self._texts[key] = self._written(version, tail, seed, length)
        return self._texts[key]

    def _written(self, version: str, tail: tuple[int, ...], seed: int, length: int) -> list[int]:
        engine, tokens = self._alone[version], list[int]()
        engine.add(self.request("alone", tail, seed, length))
        while engine.has_work:
            for output in engine.step():
                tokens += output.tokens
        return tokens

    def request(self, name: str, tail: tuple[int, ...], seed: int, length: int) -> EngineRequest:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=length, ignore_eos=True)
        return expand([*_SHARED, *tail], params, self.info, request_id=name)[0]

    def _loaded(self, version: str) -> Engine:
        folder = self._folders[version]
        chosen = EngineSettings(
            model=str(folder),
            threads=1,
            kv_cache_tokens=2048,
            max_running=SEATS,
            weight_cache=False,
        )
        return load_engine(chosen, folder)


class Reader:
    """A caller that collects the tokens of its stream."""

    def __init__(self, asked: tuple[tuple[int, ...], int, int], stream: OutputStream) -> None:
        self.asked, self.stream = asked, stream
        self.tokens: list[int] = []
        self.reason: str | None = None
        self.error = ""
        self.cancelled = False

    async def read(self) -> None:
        async for output in self.stream:
            self.tokens += output.tokens
            self.reason, self.error = output.finish_reason, output.error or ""


class NodesMachine(RuleBasedStateMachine):
    """Replicas that are killed, cut off, added, drained, stopped, and replaced by another version."""

    model: ClassVar[Model]

    def __init__(self) -> None:
        super().__init__()
        self.loop = PatientLoop()
        self.nodes: list[Node] = []
        self.readers: list[Reader] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.shares = {"a": 100.0}
        self.delisted: set[str] = set()
        self.run(self.start())

    def run(self, doing: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            await doing
            await settled()

        self.loop.run_until_complete(whole())

    async def start(self) -> None:
        async def members(fleet: Fleet) -> None:
            await asyncio.Event().wait()

        self.client = new_client(members=members, router=PrefixRouter(seed=1))
        self.client.launch()
        await self.join("a")
        await self.join("a")
        await self.client.ready()

    async def join(self, version: str) -> None:
        node = self.model.node(version)
        await node.start()
        self.nodes.append(node)
        self.list_nodes()

    def list_nodes(self) -> None:
        self.client.fleet.releases.shares = self.shares
        listed = [one for one in self.nodes if one.release in self.shares and not one.gone]
        self.client.fleet.follow([one.source() for one in listed])

    def node(self, number: int) -> Node | None:
        there = [one for one in self.nodes if not one.gone]
        return there[number % len(there)] if there else None

    @rule(
        tail=st.lists(st.integers(1, 5), min_size=1, max_size=20).map(tuple),
        seed=st.integers(0, 9),
        length=st.integers(6, 24),
    )
    def submit(self, tail: tuple[int, ...], seed: int, length: int) -> None:
        async def submit() -> None:
            request = self.model.request(f"r{len(self.readers)}-0", tail, seed, length)
            reader = Reader((tail, seed, length), self.client.submit(request))
            self.readers.append(reader)
            self.tasks.append(asyncio.create_task(reader.read()))

        self.run(submit())

    @rule(count=st.integers(1, 2))
    def step(self, count: int) -> None:
        async def step() -> None:
            for _ in range(count):
                for one in self.nodes:
                    if not one.gone:
                        one.engine.step()
                await settled()

        self.run(step())

    @rule(number=st.integers(0, 9), steps=st.booleans())
    def kill(self, number: int, steps: bool) -> None:
        """Kill a replica, with or without Outputs on their way; another one is started for it."""

        async def kill() -> None:
            if node := self.node(number):
                if steps:
                    node.engine.step()
                    await asyncio.sleep(0)
                await node.kill()

        self.run(kill())

    @rule(number=st.integers(0, 9), steps=st.booleans())
    def partition(self, number: int, steps: bool) -> None:
        """Close the sockets of a replica, which goes on computing what it has."""

        async def partition() -> None:
            if node := self.node(number):
                node.cut()
                if steps:
                    node.engine.step()

        self.run(partition())

    @rule()
    def heal(self) -> None:
        async def heal() -> None:
            for one in self.nodes:
                one.heal()
            await asyncio.sleep(10)  # longer than the longest pause between two attempts

        self.run(heal())

    @rule()
    def add(self) -> None:
        async def add() -> None:
            if sum(not one.gone for one in self.nodes) < _MOST_NODES:
                await self.join(max(self.shares, key=lambda name: self.shares[name]))

        self.run(add())

    @rule(number=st.integers(0, 9))
    def drain(self, number: int) -> None:
        async def drain(name: str) -> None:
            # It may be the last one, or have left already.
            with contextlib.suppress(Conflict, RequestError):
                await self.client.drain(name)

        async def begin() -> None:
            if node := self.node(number):
                self.tasks.append(asyncio.create_task(drain(node.name)))

        self.run(begin())

    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        """Stop a replica as SIGTERM does."""

        async def begin() -> None:
            if node := self.node(number):
                self.tasks.append(asyncio.create_task(node.leave()))

        self.run(begin())

    @rule()
    def update(self) -> None:
        """Begin to replace the version; old replicas complete what they have begun."""

        async def update() -> None:
            old = max(self.shares, key=lambda name: self.shares[name])
            new = "b" if old == "a" else "a"
            self.shares = {old: 0.0, new: 100.0}
            await self.join(new)

        self.run(update())

    @precondition(lambda self: len(self.shares) > 1)
    @rule()
    def finish_update(self) -> None:
        """List the old version no more."""

        async def finish() -> None:
            [old] = [name for name, share in self.shares.items() if not share]
            del self.shares[old]
            self.delisted.add(old)
            self.list_nodes()

        self.run(finish())

    @precondition(lambda self: self.readers)
    @rule(number=st.integers(0, 99))
    def cancel(self, number: int) -> None:
        reader = self.readers[number % len(self.readers)]

        async def cancel() -> None:
            reader.cancelled = True
            reader.stream.cancel()

        self.run(cancel())

    @invariant()
    def tokens_are_those_of_one_engine(self) -> None:
        for one in self.readers:
            count = len(one.tokens)
            texts = [self.model.text(version, *one.asked)[:count] for version in "ab"]
            assert one.tokens in texts, "a text has tokens twice, lacks some, or mixes versions"

    def teardown(self) -> None:
        self.loop.run_until_complete(self.finish())
        self.tokens_are_those_of_one_engine()
        for one in self.readers:
            if not one.cancelled and not (self.delisted and "was removed" in one.error):
                assert one.reason == "length", one.error
                assert len(one.tokens) == one.asked[-1]
        self.loop.close()

    async def finish(self) -> None:
        await self.join(max(self.shares, key=lambda name: self.shares[name]))
        for old in [name for name, share in self.shares.items() if not share]:
            await self.join(old)  # for the texts that it has begun
        for one in self.nodes:
            one.heal()
        for _ in range(100):
            for one in self.nodes:
                if not one.gone:
                    one.engine.step()
            await settled()
            if not self.client.in_flight:
                break
        assert self.client.in_flight == 0, "a stream was lost"
        await self.client.close()
        await settled()
        for one in self.nodes:
            assert one.gone or not one.client.in_flight, "an engine still works for nobody"
            await one.kill()
        await ended(*self.tasks)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("versions"))


def test_streams_are_those_of_one_engine_whatever_happens_to_replicas(model: Model) -> None:
    NodesMachine.model = model
    run_state_machine_as_test(
        NodesMachine,
        settings=settings(
            max_examples=examples(50),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_replica_that_is_stopped_stays_until_others_have_what_it_computed() -> None:
    """They fetch the blocks of its requests from it; without its answer they would compute them again."""

    def engine(port: int) -> ToyEngine:
        made = ToyEngine("", SEATS)
        made.transfers = TransferInfo(role="both", host="10.0.0.1", port=port)
        return made

    async def run() -> None:
        nodes = [Node(lambda port=port: engine(port)) for port in (8600, 8601)]  # type: ignore[misc]
        for one in nodes:
            await one.start()
        client = new_client(
            remotes=[one.source() for one in nodes],
            router=PrefixRouter(seed=1),
            cached_tokens=cached_tokens,
        )
        client.launch()
        await client.ready()
        await settled()
        sampling = SamplingParams(seed=1, max_tokens=3)
        request = EngineRequest(id="r", payload=Generate(prompt=[7] * 600, sampling=sampling))
        reader = Reader(((), 1, 3), client.submit(request))
        reading = asyncio.create_task(reader.read())
        await settled()
        [old] = [one for one in nodes if one.engine.requests]
        [new] = [one for one in nodes if one is not old]
        old.engine.step()
        await settled()
        leaving = asyncio.create_task(old.leave())
        await asyncio.sleep(2)
        assert not old.engine.requests
        assert new.engine.requests
        assert not leaving.done()
        new.engine.step()
        await settled()
        assert leaving.done()
        assert old.gone
        new.engine.step()
        await reading
        assert reader.tokens == [token_at(request, i, "") for i in range(3)]
        await client.close()
        await new.kill()

    loop = PatientLoop()
    loop.run_until_complete(run())
    loop.close()
