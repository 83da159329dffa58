"""Replays a trace: its times, sessions, lengths and shared prefixes, with synthetic texts."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from galley.bench.serve.client import Client
from galley.bench.serve.load import Run, open_loop
from galley.bench.serve.measure import summarize
from galley.bench.serve.results import Point
from galley.bench.serve.session import checked, first_model
from galley.bench.serve.words import Words
from galley.bench.serve.workload import PATHS, Prepared
from galley.errors import SettingsError
from galley.traffic.texts import TextCipher
from galley.traffic.trace import Turn

_BLOCKS_KEPT: Final = 4096


class Texts:
    """The synthetic texts of a trace's prompts.

    Blocks with equal hashes have equal words, each of one token where the server counts tokens, so prompts
    share as many tokens as the recorded ones. The last block of a prompt may be partial. In the next turn
    of the session it is complete, with another hash, and begins with the same tokens.
    """

    def __init__(self, words: Words, seed: int, turns: Sequence[Turn] = ()) -> None:
        """Prepare texts.

        Args:
            words: of which they are made.
            seed: other seeds make other texts.
            turns: of the trace, among which sessions continue.
        """
        self._words = words
        self._seed = seed
        self._blocks: dict[tuple[int, int], list[str]] = {}
        self._continued = _continued(turns)

    def prompt(self, turn: Turn, index: int) -> str:
        """Return the prompt of a turn; ``index`` makes one without hashes unlike all others."""
        line = turn.line
        count = max(1, line.input_length - self._words.overhead)
        if line.hash_ids is None:
            return self._words.text(line.input_length, random.Random(f"{self._seed} {index}"))
        words: list[str] = []
        for block in line.hash_ids:
            words += self._block(_last_of(self._continued, block), line.block_size)
        if len(words) < count:
            own = random.Random(f"{self._seed} {line.hash_ids} rest")
            words += own.choices(self._words.words, k=count - len(words))
        return self._words.joined(words[:count])

    def _block(self, block: int, size: int) -> list[str]:
        known = self._blocks.get((block, size))
        if known is None:
            own = random.Random(f"{self._seed} {block}")
            known = own.choices(self._words.words, k=size)
            if len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[block, size] = known
        return known


def _continued(turns: Sequence[Turn]) -> dict[int, int]:
    """Return partial block -> the block of the session's next turn that begins with the same tokens."""
    found: dict[int, int] = {}
    for turn in turns:
        if turn.after is None:
            continue
        earlier, now = turns[turn.after].line.hash_ids or [], turn.line.hash_ids or []
        last = len(earlier) - 1
        if not 0 <= last < len(now) or earlier[:last] != now[:last]:
            continue
        # Any trace can be given: blocks that continue each other in a circle are left as they are.
        if _last_of(found, now[last]) != earlier[last]:
            found.setdefault(earlier[last], now[last])
    return found


def _last_of(continued: Mapping[int, int], block: int) -> int:
    while block in continued:
        block = continued[block]
    return block


class RecordedTexts:
    """The prompts that were recorded, as token ids: for servers with the same tokenizer."""

    def __init__(self, turns: Sequence[Turn], cipher: TextCipher) -> None:
        """Decrypt the prompts of all turns.

        Raises:
            SettingsError: a turn has no texts, or the key is not that of the record.
        """
        self._texts = []
        for turn in turns:
            if not turn.line.texts:
                raise SettingsError(
                    f"the line of {turn.line.name} has no texts: it was recorded without record_texts"
                )
            self._texts.append(cipher.decrypt(turn.line.texts, turn.line.name))

    def prompt(self, turn: Turn, index: int) -> list[int]:
        """Return the prompt of the turn with this index."""
        return self._texts[index].prompt

    def answered(self, most: int) -> list[tuple[list[int], list[int]]]:
        """Return prompts with their first answers, at most this many, evenly spaced over the trace."""
        found = [
            (text.prompt, text.outputs[0])
            for text in self._texts
            if text.outputs and text.outputs[0]
        ]
        return found[:: -(-len(found) // most)] if found else []


def requests(turns: Sequence[Turn], model: str, texts: Texts | RecordedTexts) -> Iterator[Prepared]:
    """Yield the request of each turn: a completion of as many tokens as were generated."""
    for index, turn in enumerate(turns):
        body: dict[str, Any] = {
            "model": model,
            "prompt": texts.prompt(turn, index),
            "max_tokens": max(1, turn.line.output_length),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield Prepared(PATHS["completions"], json.dumps(body).encode(), "application/json", True)


async def replay(
    client: Client,
    turns: Sequence[Turn],
    *,
    speed: float,
    model: str | None,
    seed: int,
    objective: Mapping[str, float],
    price_per_hour: float | None,
    on_end: Callable[[], None] = lambda: None,
    texts: Texts | RecordedTexts | None = None,
) -> tuple[str, Point, Run]:
    """Send the turns of a trace at their times, and return the model, the figures and the run.

    Args:
        client: client of the server.
        turns: from :func:`galley.traffic.trace.read_trace`.
        speed: how many times as fast as recorded.
        model: the served name; None is the first model that the server lists.
        seed: of the words.
        objective, price_per_hour: see :func:`~galley.bench.serve.measure.summarize`.
        on_end: called at the end of each request.
        texts: the prompts of the turns; None: synthetic ones, of words that the server is asked about.

    Raises:
        EngineError: the server cannot be reached, or no request succeeds.
        SettingsError: the model has to be named.
    """
    model = model or await first_model(client)
    texts = texts or Texts(await Words.learn(client, model, chat=False), seed, turns)
    times = [turn.due / speed for turn in turns]
    waits = [None if t.after is None else (t.after, t.pause / speed) for t in turns]
    run = await open_loop(client, requests(turns, model, texts), times, on_end, after=waits)
    checked(run)
    load = len(turns) / times[-1] if times[-1] else float(len(turns))
    point = summarize(
        run,
        kind="trace",
        load=load,
        objective=objective,
        price_per_hour=price_per_hour,
    )
    return model, point, run


def recorded_share(turns: Sequence[Turn]) -> float | None:
    """Return the share of prompt tokens that the prefix cache had when the trace was recorded."""
    lines = [turn.line for turn in turns if turn.line.cached_tokens is not None]
    prompts = sum(line.input_length for line in lines)
    return sum(line.cached_tokens or 0 for line in lines) / prompts if prompts else None
