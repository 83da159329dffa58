"""Texts with a given number of tokens, made of one-token words where the server can count tokens."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from galley.bench.serve.client import Client

_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team idea body back face door old new good big small "
    "a b c d e f g h i j k l m n o p q r s t u v w x y z"
)
_CANDIDATES: Final = tuple(_TEXT.split())
_STARTER: Final = "Now"
_FEWEST: Final = 8  # words: with 8, two equal KV blocks of 16 tokens are very unlikely
_CHECKED: Final = 200
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Words:
    """The words of synthetic prompts.

    Attributes:
        words: each adds one token to a prompt, if ``exact``.
        overhead: tokens of a prompt with the first word alone; for chat, its template included.
        exact: whether the server counted, so that prompts have exactly the wanted number of tokens.
            Otherwise a word is counted as one token.
    """

    words: Sequence[str] = _CANDIDATES
    overhead: int = 1
    exact: bool = False

    @classmethod
    async def learn(cls, client: Client, model: str, *, chat: bool) -> Self:
        """Use the server's ``/tokenize`` (the same route as in vLLM) to find words of one token.

        Without such a route, or with a tokenizer whose counts do not add up, the words are not exact.

        Raises:
            CallFailed: the server cannot be reached.
        """
        gate = asyncio.Semaphore(_AT_ONCE)

        async def count(text: str) -> int | None:
            said = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            async with gate:
                status, answer = await client.json("/tokenize", {"model": model, **said})
            found = answer.get("count") if status == 200 and isinstance(answer, dict) else None
            return found if isinstance(found, int) else None

        overhead = await count(_STARTER)
        if not overhead:
            return cls()
        counts = await asyncio.gather(*(count(f"{_STARTER} {word} {word}") for word in _CANDIDATES))
        single = [word for word, n in zip(_CANDIDATES, counts, strict=True) if n == overhead + 2]
        if len(single) < _FEWEST:
            return cls()
        learned = cls(single, overhead, exact=True)
        check = learned.text(_CHECKED, random.Random(0))
        return learned if await count(check) == _CHECKED else cls()

    def text(self, tokens: int, own: random.Random, shared: float = 0.0) -> str:
        """Return a text of ``tokens`` tokens, or of ``overhead`` tokens if that is more.

        Args:
            tokens: how many.
            own: draws the words; equal states give equal texts.
            shared: this share of the words, counted from the beginning, is the same in all texts.
        """
        count = max(0, tokens - self.overhead)
        common = round(shared * count)
        beginning = random.Random(1).choices(self.words, k=common)
        return self.joined([*beginning, *own.choices(self.words, k=count - common)])

    def joined(self, words: Sequence[str]) -> str:
        """Return a text of ``overhead`` tokens and these words."""
        return " ".join([_STARTER, *words])
