"""Who gets a text worker next."""

import asyncio
from pathlib import Path

import pytest

from galley.errors import QueueFull
from galley.service.text_pool import TextPool, _Turns
from galley.settings.config import Settings
from galley.text.tokenizer import Tokenizer
from tests.checkpoints import make_tokenizer


async def take(turns: _Turns, size: int, done: list[int]) -> None:
    await turns.wait(size)
    done.append(size)
    turns.pass_on()


def test_the_smallest_that_waits_is_next() -> None:
    asyncio.run(_the_smallest_that_waits_is_next())


async def _the_smallest_that_waits_is_next() -> None:
    turns, done = _Turns(10), list[int]()
    await turns.wait(0)
    waiting = [asyncio.create_task(take(turns, size, done)) for size in (30, 10, 20, 5)]
    await asyncio.sleep(0)
    waiting[3].cancel()
    await asyncio.sleep(0)
    turns.pass_on()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert done == [10, 20, 30]
    assert not turns.taken


def test_nobody_waits_for_long_or_with_much() -> None:
    asyncio.run(_nobody_waits_for_long_or_with_much())


async def _nobody_waits_for_long_or_with_much() -> None:
    turns = _Turns(0.05)
    await turns.wait(0)
    with pytest.raises(QueueFull, match=r"within 0\.05 s") as full:
        await turns.wait(1)
    assert full.value.retry_after == 0.05
    with pytest.raises(QueueFull, match="too much waits"):
        await turns.wait(100 * 2**20)
    turns.pass_on()
    await turns.wait(100 * 2**20)  # alone it is taken


def test_a_caller_who_leaves_does_not_confuse_the_next(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    asyncio.run(_a_caller_who_leaves_does_not_confuse_the_next(tmp_path))


async def _a_caller_who_leaves_does_not_confuse_the_next(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tmp_path)
    pool = TextPool(Settings(), "tiny", tmp_path, tokenizer, unchanged=lambda: True)
    texts = [f"{word} " * 20_000 for word in ("cat", "dog", "mat")]
    leaving = asyncio.create_task(pool.encode([texts[0]]))
    while not pool.busy:
        await asyncio.sleep(0.01)
    leaving.cancel()
    encoded = await asyncio.gather(*(pool.encode([text]) for text in texts[1:]))
    assert [ids for [ids] in encoded] == [tokenizer.encode(text) for text in texts[1:]]
    assert leaving.cancelled()
    await pool.close()
