"""Blocks from another engine: they save computing and change no bit, whatever happens on the way."""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from galley import Grammar, SamplingParams
from galley.engine.engine import Engine
from galley.engine.shared_blocks import SharedBlocks, SharedPlace, open_shared
from galley.grammar.check import check
from galley.grammar.vocabulary import load_vocabulary
from galley.service.requests import expand
from galley.types import BLOCK_TOKENS, Adapter, EngineRequest, Output
from galley.types.transfers import KVPeer
from tests.adapters.peft import make_adapter
from tests.conftest import CheckpointMaker
from tests.engine.peers import Peer, Relay, Spoil, decoder, engine_of
from tests.engine.requests import run, seen
from tests.server.serving import until
from tests.thorough import THOROUGH

PROMPT = [(7 * i) % 90 + 5 for i in range(150)]
FULL = (len(PROMPT) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
SIZE = 66_000
"""Bytes of the prompt's blocks on their way."""
GRAMMAR = Grammar("regex", "[a-z]{3,9}")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)


def request_for(
    engine: Engine, params: SamplingParams = GREEDY, salt: str = "", **fields: Any
) -> EngineRequest:
    [made] = expand(PROMPT, params, engine.info, request_id="r", cache_salt=salt)
    return msgspec.structs.replace(made, **fields)


def answer(engine: Engine, request: EngineRequest | None = None) -> tuple[Any, int]:
    """Return all that a caller sees of a text, and the prompt tokens that were cached."""
    outputs: list[Output] = run(engine, [request or request_for(engine)])["r-0"]
    return seen({"r": outputs})["r"], max(output.cached_tokens for output in outputs)


def prefill(engine: Engine, **fields: Any) -> KVPeer:
    """Compute the prompt, as a prefill server does, and return where its blocks are."""
    params = SamplingParams(max_tokens=1)
    [*_, last] = run(engine, [request_for(engine, params, offered=True, **fields)])["r-0"]
    assert last.kv_peer is not None
    return last.kv_peer


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "token"
    path.write_text("a secret that all machines have\n")
    return path


@pytest.mark.parametrize(
    ("variant", "chosen"),
    [
        ("llama", {"kv_dtype": "bfloat16"}),
        ("llama", {"kv_dtype": "int8"}),
        ("llama", {"executor": "reference"}),
        ("qwen2-window", {}),
        ("deepseek-v3", {"kv_dtype": "int8"}),
    ],
)
def test_a_prompt_is_computed_by_one_engine_and_continued_by_another(
    variant: str, chosen: dict[str, Any], checkpoint: CheckpointMaker, token: Path
) -> None:
    folder = checkpoint(variant)
    expected, _ = answer(engine_of(folder, **chosen))
    one = engine_of(folder, **chosen)
    with Peer(one, token) as peer:
        where = prefill(one)
        assert where == peer.at(len(PROMPT) // BLOCK_TOKENS * BLOCK_TOKENS)
        other = decoder(folder, token, **chosen)
        assert answer(other, request_for(other, kv_from=where)) == (expected, FULL)
        stats = other.stats
        assert stats.prefill_tokens == len(PROMPT) - FULL
        assert stats.kv_peer_hit_tokens == FULL
        assert (stats.kv_fetches, stats.kv_fetch_failures, stats.kv_missing_blocks) == (1, 0, 0)
        assert stats.kv_fetched_blocks == one.stats.kv_sent_blocks
        assert 0 < stats.kv_fetched_bytes < one.stats.kv_sent_bytes
        # They are cached like others now, and are not fetched again.
        assert answer(other, request_for(other, kv_from=where)) == (expected, FULL)
        assert other.stats.kv_fetches == 1
        other.close()
        until(lambda: one.stats.kv_used_blocks == 0)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.9, seed=5, max_tokens=12, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=12, grammar=GRAMMAR),
        SamplingParams(temperature=0.5, seed=1, max_tokens=8, prompt_logprobs=1),
    ],
    ids=["seeded", "grammar", "scored"],
)
def test_texts_of_all_kinds_are_those_of_one_engine(
    params: SamplingParams, folders: tuple[Path, Adapter], token: Path
) -> None:
    folder, _ = folders
    if params.grammar is not None:
        checked = check(params.grammar, load_vocabulary(folder), "grammar")
        params = msgspec.structs.replace(params, grammar=checked)
    alone = engine_of(folder)
    expected, _ = answer(alone, request_for(alone, params))
    one = engine_of(folder)
    with Peer(one, token):
        where = prefill(one)
        other = decoder(folder, token)
        assert answer(other, request_for(other, params, kv_from=where))[0] == expected
        other.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Adapter]:
    """A model with a tokenizer, and an adapter."""
    from tests.tools.checkpoint import make_calling

    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_calling(folder)
    return folder, make_adapter(folder.parent / "adapter", folder, size=0.2)


def test_an_adapters_blocks_and_a_tenants_are_its_own(
    folders: tuple[Path, Adapter], token: Path
) -> None:
    folder, adapter = folders
    chosen = {"max_adapters": 1}
    alone = engine_of(folder, **chosen)
    plain = answer(alone)[0]
    expected = answer(alone, request_for(alone, adapter=adapter))[0]
    assert plain != expected
    one = engine_of(folder, **chosen)
    with Peer(one, token):
        where = prefill(one, adapter=adapter)
        other = decoder(folder, token, **chosen)
        # Those that the peer computed for an adapter are no use for the model alone.
        assert answer(other, request_for(other, kv_from=where)) == (plain, 0)
        theirs = request_for(other, salt="theirs", adapter=adapter, kv_from=where)
        assert answer(other, theirs) == (expected, 0)
        mine = request_for(other, adapter=adapter, kv_from=where)
        assert answer(other, mine) == (expected, FULL)
        assert other.stats.kv_fetch_failures == 0
        assert other.stats.kv_missing_blocks == 2 * FULL // BLOCK_TOKENS
        other.close()


def test_a_cold_engine_takes_what_another_has_on_disk(
    checkpoint: CheckpointMaker, token: Path, tmp_path: Path
) -> None:
    folder = checkpoint("llama")
    first = engine_of(folder, prefix_cache_dir=str(tmp_path))
    expected, _ = answer(first)
    first.close()
    with Peer(engine_of(folder, prefix_cache_dir=str(tmp_path)), token) as peer:
        other = decoder(folder, token)
        assert answer(other, request_for(other, kv_from=peer.at(FULL))) == (expected, FULL)
        other.close()


def test_what_comes_from_a_peer_is_saved_to_disk(
    checkpoint: CheckpointMaker, token: Path, tmp_path: Path
) -> None:
    folder = checkpoint("llama")
    one = engine_of(folder)
    with Peer(one, token):
        where = prefill(one)
        other = decoder(folder, token, prefix_cache_dir=str(tmp_path))
        expected = answer(other, request_for(other, kv_from=where))
        other.close()
    again = engine_of(folder, prefix_cache_dir=str(tmp_path))
    assert answer(again) == expected == (expected[0], FULL)
    again.close()


def flip(rng: random.Random) -> Spoil:
    place = rng.randrange(SIZE)

    def spoil(data: bytes, before: int) -> bytes:
        if not before <= place < before + len(data):
            return data
        bent = bytearray(data)
        bent[place - before] ^= 1 << rng.randrange(8)
        return bytes(bent)

    return spoil


def cut(rng: random.Random) -> Spoil:
    place = rng.randrange(SIZE)
    return lambda data, before: data if before + len(data) < place else None


def stop(rng: random.Random) -> Spoil:
    place = rng.randrange(SIZE)

    def spoil(data: bytes, before: int) -> bytes:
        if before + len(data) >= place:
            time.sleep(1)
        return data

    return spoil


def drop(rng: random.Random) -> Spoil:
    """Leave out a piece, so that later bytes take the place of earlier ones."""
    place = rng.randrange(SIZE)
    return lambda data, before: b"" if before <= place < before + len(data) else data


def repeat(rng: random.Random) -> Spoil:
    place = rng.randrange(SIZE)
    return lambda data, before: 2 * data if before <= place < before + len(data) else data


class Pair:
    """An engine that has computed the prompt, and one that fetches; what it fetched is forgotten."""

    def __init__(self, peer: Peer, other: Engine) -> None:
        self.peer, self.other = peer, other
        self.expected, _ = answer(other)
        self.where = prefill(peer.engine)
        self.taken: set[int] = set()
        self.forget()

    def forget(self) -> None:
        self.other._kv.forget_all()

    def check(self, port: int) -> int:
        """Check the text of a request that fetches through a port; return the tokens that came."""
        before = self.other.stats.kv_fetches
        where = msgspec.structs.replace(self.where, port=port)
        text, cached = answer(self.other, request_for(self.other, kv_from=where))
        assert text == self.expected
        assert self.other.stats.kv_fetches == before + 1
        self.forget()
        return cached


@pytest.fixture(scope="module")
def pair(checkpoint: CheckpointMaker, token: Path) -> Iterator[Pair]:
    folder = checkpoint("llama")
    with Peer(engine_of(folder), token) as peer:
        other = decoder(folder, token)
        yield Pair(peer, other)
        other.close()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines take each other for ones on other hosts."""
    monkeypatch.setattr("galley.engine.block_transport.host_identity", lambda: "elsewhere")


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("ways", "count"), [(stop, 4), (flip, 40), (cut, 40), (drop, 8), (repeat, 8)]
)
def test_a_hundred_broken_transfers_change_no_text(
    ways: Callable[[random.Random], Spoil], count: int, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galley.engine.block_transport._AVOID_SECONDS", 0.0)
    peers = pair.other._tier._peers  # type: ignore[union-attr]
    assert peers is not None
    size = pair.peer.engine.stats.kv_sent_bytes
    assert pair.check(pair.where.port) == FULL
    assert SIZE < pair.peer.engine.stats.kv_sent_bytes - size < 1.02 * SIZE
    failures = pair.other.stats.kv_fetch_failures
    monkeypatch.setattr(peers, "_limit", 0.3 if ways is stop else 20.0)
    whole = 0
    for number in range(count if not THOROUGH else 4 * count):
        with Relay(pair.where.port, ways(random.Random(number))) as relay:
            whole += pair.check(relay.port) == FULL
    assert pair.other.stats.kv_fetch_failures - failures >= count // 2
    assert whole <= count // 2
    monkeypatch.setattr(peers, "_limit", 20.0)
    assert pair.check(pair.where.port) == FULL


@pytest.mark.parametrize("batch", [1, 20_000, 1 << 24])
def test_on_one_host_blocks_are_in_shared_memory(
    batch: int, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galley.engine.block_server.SHARED_BYTES", batch)
    seen_bytes = 0

    def count(data: bytes, before: int) -> bytes:
        nonlocal seen_bytes
        seen_bytes += len(data)
        return data

    sent = pair.peer.engine.stats.kv_sent_bytes
    with Relay(pair.where.port, count) as relay:
        assert pair.check(relay.port) == FULL
    assert seen_bytes < SIZE / 20 < SIZE < pair.peer.engine.stats.kv_sent_bytes - sent


def test_shared_memory_that_cannot_be_opened_is_sent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time, such as after the limit of open files was reached."""
    monkeypatch.setattr("galley.engine.block_server.SHARED_BYTES", 20_000)
    opened = 0

    def refused(place: bytes, sizes: list[int]) -> Iterator[bytearray]:
        nonlocal opened
        opened += 1
        if opened == 2:
            raise PermissionError(place)
        return open_shared(place, sizes)

    monkeypatch.setattr("galley.engine.block_transport.open_shared", refused)
    failures = pair.other.stats.kv_fetch_failures
    assert pair.check(pair.where.port) == FULL
    assert opened == 2
    assert pair.other.stats.kv_fetch_failures == failures


@pytest.mark.parametrize("spoil", ["flip", "cut", "place", "count"])
def test_shared_memory_with_something_else_is_a_miss(
    spoil: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(memory: SharedBlocks) -> bytes:
        place = msgspec.msgpack.decode(placed(memory), type=SharedPlace)
        if spoil == "flip":
            os.pwrite(place.file, b"?!", memory.size // 2)
        elif spoil == "cut":
            os.ftruncate(place.file, memory.size - 1)
        elif spoil == "place":
            place = msgspec.structs.replace(place, file=0)
        else:
            place = msgspec.structs.replace(place, count=place.count + 100)
        return msgspec.msgpack.encode(place)

    placed: Callable[[SharedBlocks], bytes] = SharedBlocks.__dict__["place"].fget
    monkeypatch.setattr(SharedBlocks, "place", property(spoiled))
    failures = pair.other.stats.kv_fetch_failures
    assert pair.check(pair.where.port) < FULL
    assert pair.other.stats.kv_fetch_failures == failures + 1
