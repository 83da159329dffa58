"""KV events: a real engine's prefix cache, followed by a subscriber with vLLM's types over ZeroMQ."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from galley import SamplingParams
from galley.errors import SettingsError
from galley.gateway.make_submitter import make_submitter
from galley.service.frames import Blocks
from galley.service.kv_events import KvEvents
from galley.service.requests import expand
from galley.settings.config import Settings
from galley.types.block_hashes import BlockContent, HashChain, salt_hash
from tests.conftest import CheckpointMaker

zmq = pytest.importorskip("zmq", reason="extra kv-events")


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """As in vLLM's examples/online_serving/kv_events_subscriber.py, as the other types here."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Follower:
    """What a router outside knows: prompts by the numbers of their blocks."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self._socket.connect(endpoint)
        self._socket.subscribe(topic.encode())
        self._topic = topic.encode()
        self.count = 0
        self.tokens: dict[int | bytes, list[int]] = {}
        self.cleared = False

    def close(self) -> None:
        self._socket.close()

    def follow(self) -> KVEventBatch:
        """Take the next message."""
        topic, number, body = self._socket.recv_multipart()
        assert topic == self._topic
        assert int.from_bytes(number, "big") == self.count
        self.count += 1
        batch = msgspec.msgpack.decode(body, type=KVEventBatch)
        for event in batch.events:
            self._apply(event)
        return batch

    def _apply(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        if isinstance(event, AllBlocksCleared):
            self.tokens.clear()
            self.cleared = True
        elif isinstance(event, BlockRemoved):
            for number in event.block_hashes:
                del self.tokens[number]
        else:
            before = [] if event.parent_block_hash is None else self.tokens[event.parent_block_hash]
            for i, number in enumerate(event.block_hashes):
                begin = i * event.block_size
                before = [*before, *event.token_ids[begin : begin + event.block_size]]
                self.tokens[number] = before


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'kv'}"


def expected(prompt: list[int], blocks: int) -> dict[int, list[int]]:
    chain = HashChain(salt_hash("")).upto(prompt, blocks)
    return {
        int.from_bytes(key[-8:], "big"): prompt[: 16 * (i + 1)]
        for i, key in enumerate(chain[:blocks])
    }


async def answer(client: Any, prompt: list[int], name: str, salt: str = "") -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    request = expand(prompt, params, client.info, request_id=name)[0]
    request = msgspec.structs.replace(request, cache_salt=salt)
    return [token async for output in client.submit(request) for token in output.tokens]


def test_a_subscriber_knows_what_the_engine_holds(
    checkpoint: CheckpointMaker, endpoint: str
) -> None:
    folder = checkpoint("llama")
    settings = Settings(
        model=str(folder),
        threads=1,
        kv_cache_tokens=256,
        kv_events=endpoint,
        kv_events_topic="kv@10.0.0.7@m",
    )
    first, second = [5 + n % 50 for n in range(100)], [7 + n % 40 for n in range(150)]

    async def run() -> None:
        client: Any = make_submitter(settings, str(folder), max_queue=8)
        follower = Follower(endpoint, "kv@10.0.0.7@m")
        client.launch()
        await client.ready()
        try:
            written = await answer(client, first, "a")
            whole = [*first, *written]
            computed = expected(whole, (len(whole) - 1) // 16)
            while follower.tokens != computed:
                await asyncio.to_thread(follower.follow)
            # A tenant's blocks are nobody else's business.
            await answer(client, second[::-1], "b", salt="tenant")
            # Eviction: the cache has 16 blocks.
            whole = [*second, *await answer(client, second, "c")]
            computed = expected(whole, (len(whole) - 1) // 16)
            while not computed.items() <= follower.tokens.items():
                await asyncio.to_thread(follower.follow)
            assert len(follower.tokens) <= 16
            assert not any(tokens[0] == second[-1] for tokens in follower.tokens.values())
            follower.cleared = False
            os.kill(client.engine_pids[0], signal.SIGKILL)
            while not follower.cleared:
                await asyncio.to_thread(follower.follow)
            assert follower.tokens == {}
        finally:
            follower.close()
            await client.close()

    asyncio.run(run())


def test_runs_are_one_event_and_what_cannot_be_placed_is_left_out() -> None:
    events = KvEvents(None, "")
    keys = [bytes([n]) * 16 for n in range(6)]
    tokens = [[n] * 16 for n in range(6)]
    first, second, other = (
        BlockContent(keys[0], None, tokens[0]),
        BlockContent(keys[1], keys[0], tokens[1]),
        BlockContent(keys[2], None, tokens[2]),
    )
    lost = BlockContent(keys[4], keys[3], tokens[4])  # the block before was read from disk
    later = BlockContent(keys[5], keys[4], tokens[5])
    stored = list(events.events(Blocks(keys, [], [first, second, lost, later, other])))
    numbers = [int.from_bytes(key[-8:], "big") for key in keys]
    assert [msgspec.to_builtins(event)[:5] for event in stored] == [
        ["BlockStored", numbers[:2], None, [0] * 16 + [1] * 16, 16],
        ["BlockStored", [numbers[2]], None, [2] * 16, 16],
    ]
    removed = list(events.events(Blocks([], [keys[1], keys[4]])))
    assert [msgspec.to_builtins(event) for event in removed] == [
        ["BlockRemoved", [numbers[1]], None]
    ]
    assert [type(event).__name__ for event in events.events(Blocks([], keys))] == [
        "AllBlocksCleared"
    ]


def test_an_engine_without_a_prefix_cache_is_refused_before_it_is_ready(
    endpoint: str, tmp_path: Path
) -> None:
    # Imported late, as in ``checkpoint``.
    from tests.embedding.checkpoints import make_model

    folder = make_model(tmp_path / "model", "bert", pooling="cls_token")
    settings = Settings(model=str(folder), threads=1, kv_events=endpoint)

    async def run() -> None:
        client: Any = make_submitter(settings, str(folder), max_queue=8)
        client.launch()
        try:
            with pytest.raises(SettingsError, match="leave out kv_events"):
                await client.ready()
        finally:
            await client.close()

    asyncio.run(run())


def test_an_address_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match="cannot be bound"):
            KvEvents.bind(f"tcp://127.0.0.1:{port}", "")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kv_events": "5557"}, "expected tcp://HOST:PORT"),
        ({"kv_events": "tcp://*:99999"}, "expected tcp://HOST:PORT"),
        ({"kv_events_topic": "kv"}, "kv_events is not"),
        ({"kv_events": "tcp://*:5557", "replicas": 2}, "servers with one engine"),
        ({"kv_events": "tcp://*:5557", "prefix_cache": False}, "prefix_cache is off"),
        ({"kv_events": "tcp://*:5557", "models_dir": "/m"}, "server of one model"),
    ],
)
def test_settings_that_events_cannot_have_are_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        Settings(**changes)
