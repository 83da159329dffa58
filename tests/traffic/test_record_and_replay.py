"""The traffic of a real server is recorded without its texts, and replayed unchanged."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from galley.bench.serve.client import Client
from galley.bench.serve.replay import Texts, replay
from galley.bench.serve.words import Words
from galley.traffic.trace import TraceLine, Turn, read_trace
from tests.cli.command import galley
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("traffic")

MODEL = "galley-demo"
"""Its tokenizer has one-token words, from which texts of a given length are made."""

SECRET = "the dog sat"
SETTINGS: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 8192}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the record of sessions whose turns extend each other."""
    folder = tmp_path_factory.mktemp("record")
    own = random.Random(0)
    with Server(MODEL, folder / "log", record=folder / "record", **SETTINGS) as server:
        for session in range(4):
            prompt = [300 + session, *own.choices(range(5, 290), k=99)]
            for _ in range(3):
                body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
                answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
                assert answer.status_code == 200, answer.text
                prompt = [*prompt, *own.choices(range(5, 290), k=60)]
        question = [{"role": "user", "content": SECRET}]
        httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": question, "max_tokens": 3, "stop": ["zzz"], "user": "someone"},
            timeout=60,
        )
        assert server.stop() == 0
    return folder / "record"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(MODEL, tmp_path_factory.mktemp("server") / "log", **SETTINGS) as running:
        yield running


def test_a_record_has_lengths_hashes_and_no_text(record: Path) -> None:
    [file] = record.glob("trace-*.jsonl")
    assert file.stat().st_mode & 0o077 == 0
    text = file.read_text()
    for secret in (*SECRET.split(), "zzz", "someone"):
        assert secret not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["input_length"] for line in lines[:3]] == [100, 160, 220]
    assert [len(line["hash_ids"]) for line in lines[:3]] == [2, 3, 4]
    assert lines[0]["hash_ids"][:1] == lines[1]["hash_ids"][:1]
    assert lines[1]["hash_ids"][:2] == lines[2]["hash_ids"][:2]
    assert {line["output_length"] for line in lines[:12]} == {12}
    assert len({line["session_id"] for line in lines}) == 5
    assert lines[0]["sampling"] == {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    assert lines[-1]["endpoint"] == "/v1/chat/completions"
    assert all(line["duration_ms"] >= line["ttft_ms"] > 0 for line in lines)


def played(server: Server, turns: list[Turn], speed: float) -> tuple[Any, Any]:
    client = Client(server.url)

    async def run() -> tuple[Any, Any]:
        try:
            _, point, run = await replay(
                client,
                turns,
                speed=speed,
                model=None,
                seed=0,
                objective={},
                price_per_hour=None,
            )
            return point, run
        finally:
            client.close()

    return asyncio.run(run())


def test_a_replay_has_the_recorded_lengths_and_shares_the_recorded_prefixes(
    server: Server, record: Path
) -> None:
    turns = read_trace(record)
    point, run = played(server, turns, speed=0.5)
    assert point.completed == len(turns) == 13
    recorded = [turn.line for turn in turns]
    assert [sample.output_tokens for sample in run.samples] == [x.output_length for x in recorded]
    prompts = [sample.prompt_tokens for sample in run.samples]
    assert prompts == [line.input_length for line in recorded]
    # A block of the KV cache is 16 tokens; turns share more with each other than the record's whole blocks.
    for sample, line in zip(run.samples, recorded, strict=True):
        assert abs(sample.cached_tokens - (line.cached_tokens or 0)) <= 16


def test_turns_of_a_session_wait_for_each_other(server: Server, record: Path) -> None:
    turns = read_trace(record)
    _, run = played(server, turns, speed=10_000)
    for turn, sample in zip(turns, run.samples, strict=True):
        if turn.after is not None:
            assert sample.started >= run.samples[turn.after].ended
    assert any(turn.after is not None for turn in turns)


def test_the_command_compares_two_servers_and_writes_mooncakes_form(
    server: Server, record: Path, tmp_path: Path
) -> None:
    other, page = tmp_path / "mooncake.jsonl", tmp_path / "page.html"
    flags = ("--speed", 1000, "--requests", 4, "--write", other, "--html", page)
    done = galley("replay", record, server.url, *flags, "--against", server.url)
    assert done.returncode == 0, done.stderr
    assert "4 of 4" in done.stdout
    assert "ratio" in done.stdout
    assert "<svg" in page.read_text()
    again = galley("replay", other, server.url, "--speed", 1000)
    assert again.returncode == 0, again.stderr
    assert "4 of 4" in again.stdout


def test_a_replay_without_a_server_is_refused(record: Path) -> None:
    done = galley("replay", record)
    assert done.returncode == 2
    assert "URL" in done.stderr


def test_a_turn_begins_with_the_whole_prompt_of_the_turn_before() -> None:
    lines = [
        TraceLine(timestamp=n, input_length=n, output_length=1, hash_ids=ids, block_size=64)
        for n, ids in ((100, [1, 2]), (120, [1, 3]), (180, [1, 4, 5]), (90, [1, 2]))
    ]
    turns = [Turn(n, n - 1 if n else None, 0.0, line) for n, line in enumerate(lines)]
    for given in (turns, [turns[0], turns[1], replace(turns[0], after=1)]):
        texts = Texts(Words(), 0, given)
        prompts = [texts.prompt(turn, index).split() for index, turn in enumerate(given)]
        assert [len(prompt) for prompt in prompts] == [turn.line.input_length for turn in given]
        assert prompts[1][:100] == prompts[0]
    alone = [Texts(Words(), 0).prompt(turn, 0).split() for turn in turns]
    assert alone[1][:64] == alone[0][:64]
    assert alone[1][:100] != alone[0]
