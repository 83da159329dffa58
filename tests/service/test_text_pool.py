"""Jobs of text workers when clients leave or workers stop or die."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from galley.errors import ModelError, RequestError
from galley.service.text_frames import TextStart
from galley.service.text_lane import Lane
from galley.service.text_pool import TextPool, TextWork
from galley.settings.config import Settings
from galley.text.tokenizer import Tokenizer
from tests.checkpoints import make_tokenizer
from tests.service.exploding import make_exploding_tokenizer

Ask: TypeAlias = Callable[[TextWork, str], Awaitable[Any]]

TOKEN_A = 67
"""Id of "a" in the tiny tokenizer."""


def test_a_caller_who_disconnects_does_not_affect_the_next(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    asyncio.run(_a_caller_who_disconnects_does_not_affect_the_next(tmp_path))


async def _a_caller_who_disconnects_does_not_affect_the_next(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tmp_path)
    pool = TextPool(Settings(), "tiny", tmp_path, unchanged=lambda: True)
    work = pool.of()
    texts = [f"{word} " * 20_000 for word in ("cat", "dog", "mat")]
    leaving = asyncio.create_task(work.encode([texts[0]]))
    while not pool.busy:
        await asyncio.sleep(0.01)
    leaving.cancel()
    encoded = await asyncio.gather(*(work.encode([text]) for text in texts[1:]))
    assert [ids for [ids] in encoded] == [tokenizer.encode(text) for text in texts[1:]]
    assert leaving.cancelled()
    await pool.close()


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_that_died_while_idle_is_no_evidence_against_the_next_job(
    tmp_path: Path, number: signal.Signals
) -> None:
    make_tokenizer(tmp_path)
    expected = Tokenizer.load(tmp_path).encode("the cat sat")
    assert asyncio.run(_encoded_after_a_death(tmp_path, number)) == [expected]


async def _encoded_after_a_death(folder: Path, number: signal.Signals) -> Any:
    pool = TextPool(Settings(), "tiny", folder, unchanged=lambda: True)
    await pool.of().encode(["a"])
    [worker] = [psutil.Process(pid) for pid in pool.pids]
    worker.send_signal(number)
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        await asyncio.sleep(0.01)
    try:
        return await pool.of().encode(["the cat sat"])
    finally:
        await pool.close()


@pytest.mark.parametrize("content", ["§" * 10, "§" * 1000])
def test_a_tokenizer_that_explodes_while_it_loads_is_refused(tmp_path: Path, content: str) -> None:
    """A normalizer also runs over the added tokens then."""
    make_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    grow = {"type": "Replace", "pattern": {"String": "§"}, "content": content}
    file["normalizer"] = {"type": "Sequence", "normalizers": [grow] * 9}
    file["added_tokens"].append(
        file["added_tokens"][-1] | {"id": 319, "content": "§", "special": False, "normalized": True}
    )
    path.write_text(json.dumps(file), encoding="utf-8")
    start = TextStart(str(tmp_path), 10.0, 2**20, load_seconds=10.0, load_bytes=2**28)
    with pytest.raises(ModelError, match="cannot be loaded within 10 s and 268435456 bytes"):
        asyncio.run(_loaded(Lane("tiny", start, lambda: True)))


async def _loaded(lane: Lane) -> None:
    try:
        await lane.loaded()
    finally:
        await lane.close()


@pytest.fixture(scope="module")
def exploding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tokenizer that makes megabytes of "§", and of its token."""
    folder = tmp_path_factory.mktemp("exploding")
    make_exploding_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        (lambda work, text: work.encode([text]), "prompt"),
        (lambda work, text: work.encode_cut(["x", text], 8), "input"),
        (lambda work, text: work.encode_pairs("x", [text], None, None), "documents"),
        (lambda work, text: work.encode_pairs(text, ["x"], 8, 4), "documents"),
        (lambda work, text: work.decode([TOKEN_A] if text == "§" else [TOKEN_A + 1]), "tokens"),
    ],
    ids=["encode", "cut", "pairs", "pairs cut", "decode"],
)
def test_every_kind_of_text_work_has_a_budget(exploding: Path, ask: Ask, param: str) -> None:
    async def work() -> None:
        settings = Settings(text_bytes=2**27, text_seconds=60.0)
        pool = TextPool(settings, "tiny", exploding, unchanged=lambda: True)
        try:
            with pytest.raises(RequestError, match="the available memory") as refused:
                await ask(pool.of(), "§")
            assert refused.value.param == param
            await ask(pool.of(), "b")
        finally:
            await pool.close()

    asyncio.run(work())
