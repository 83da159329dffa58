"""Answers to questions that mean the same: near by their vectors, and equal in their facts.

A hit needs four agreements: the same scope (everything but the last message, by digest), a cosine above the
threshold, no difference of facts (:mod:`galley.cache.facts`), and a cross-encoder's score, where one is
served. The index only proposes: what is used is the entry in the store, so an answer that has ended or was
removed is never found.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

from galley.cache.entry import Entry
from galley.cache.facts import Facts, difference, same_facts
from galley.cache.guard import Guard
from galley.cache.keys import digest
from galley.cache.nearest import Candidate, Nearest, cosine, packed
from galley.cache.question import Placed, Question
from galley.cache.store import Store

_EMBED_SECONDS: Final = 1.0
"""Time for a vector or a score, after which requests continue without one."""
_CANDIDATES: Final = 8
"""Near questions whose facts are compared, the nearest first."""
_RANKED: Final = 4
"""The most of these that the cross-encoder scores."""
_FOLLOW_SECONDS: Final = 0.5
"""Interval at which questions that other processes have stored are read."""
_FOLLOWED: Final = 20
"""Entries that are read at a time, so that the event loop is not held up."""


class Embedded(NamedTuple):
    """A text's vector (float32), and an identity of the model that computed it."""

    model: bytes
    vector: bytes


class Embedder(Protocol):
    """Computes vectors."""

    async def embed(self, text: str, *, cut: bool = False) -> Embedded | None:
        """Return a text's vector; None if the model does not take the text.

        Args:
            text: the text.
            cut: whether to leave out what exceeds the model's limit, instead of returning None.

        Raises:
            StoreError: the model cannot be used now.
        """


class Ranker(Protocol):
    """A cross-encoder."""

    async def scores(self, text: str, others: Sequence[str]) -> list[float] | None:
        """Return how well each other text matches; None if the model does not take one of them.

        Raises:
            StoreError: the model cannot be used now.
        """


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When two texts count as the same.

    Attributes:
        threshold: least cosine of two questions.
        ranking: least score of the cross-encoder, if there is one.
        agreement: least cosine of two answers.
        entries: the most questions in memory.
    """

    threshold: float
    ranking: float | None = None
    agreement: float
    entries: int = 50_000


class Near(NamedTuple):
    """A stored answer to a question that means the same."""

    entry: Entry
    similarity: float


Read = Callable[[Sequence[bytes]], Awaitable[list[Entry | None] | None]]


class Semantic:
    """Finds stored answers by meaning. For use in one event loop."""

    def __init__(
        self, read: Read, store: Store, embedder: Embedder, ranker: Ranker | None, limits: Limits
    ) -> None:
        """Know no question yet.

        Args:
            read: returns entries by their keys; None while the store cannot be used.
            store: whose questions are followed.
            embedder: computes the vectors.
            ranker: a cross-encoder, if one is served.
            limits: when two texts count as the same.
        """
        self._read = read
        self._store = store
        self._embedder = embedder
        self._ranker = ranker
        self._limits = limits
        self._index = Nearest(limits.entries)
        self._embeds = Guard("searched by meaning", _EMBED_SECONDS)
        self._ranks = Guard("searched with the reranker", _EMBED_SECONDS)
        self._follows = Guard("followed", _EMBED_SECONDS)
        self._vectors: dict[str, asyncio.Task[Embedded | None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._place = ""

    def __len__(self) -> int:
        return len(self._index)

    def start(self) -> None:
        """Begin to follow the questions in the store."""
        self._task = asyncio.create_task(self._follow(), name="galley-questions")

    async def place(self, question: Question, scope: bytes) -> Placed | None:
        """Return a question with its vector; None if there is none.

        Args:
            question: the question.
            scope: digest of all else that shapes the answer.
        """
        embedded = await self._vector(question.text)
        try:
            vector = None if embedded is None else packed(embedded.vector)
        except ValueError:
            return None
        if embedded is None or vector is None:
            return None
        return Placed(digest(b"question", scope, embedded.model), question.text, vector)

    async def _vector(self, text: str) -> Embedded | None:
        """Embed a text; equal texts at the same time once."""
        task = self._vectors.get(text)
        if task is None:
            work = self._embeds.run(lambda: self._embedder.embed(text))
            task = self._vectors[text] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._vectors.pop(text, None))
        return await asyncio.shield(task)

    async def find(self, placed: Placed, max_age: float) -> Near | None:
        """Return the stored answer to the nearest question that means the same.

        Args:
            placed: the question.
            max_age: age in seconds beyond which an answer is not used.
        """
        near = await self._index.nearest(
            placed.scope, placed.vector, least=self._limits.threshold, most=_CANDIDATES
        )
        if not near:
            return None
        facts = Facts(placed.text)
        # Facts of a long text take a millisecond: they are found as far as they are needed.
        same = (one for one in near if difference(facts, Facts(one.text)) is None)
        for one in await self._confirmed(placed.text, same):
            read = await self._read([one.key])
            if read is None:
                return None  # the store cannot be used now
            [entry] = read
            if entry is None or entry.scope != placed.scope or entry.question != one.text:
                self._index.remove(one.key)
                continue
            if time.time() - entry.created <= max_age:
                self._index.use(one.key)
                return Near(entry, min(1.0, one.similarity))
        return None

    async def _confirmed(self, text: str, near: Iterator[Candidate]) -> Iterable[Candidate]:
        """Return those that the cross-encoder confirms; all if there is none."""
        ranker, least = self._ranker, self._limits.ranking
        if ranker is None or least is None:
            return near
        some = list(islice(near, _RANKED))
        if not some:
            return []
        scores = await self._ranks.run(lambda: ranker.scores(text, [one.text for one in some]))
        if scores is None:
            return []
        return [one for one, score in zip(some, scores, strict=True) if score >= least]

    async def agree(self, first: str, second: str) -> bool | None:
        """Return whether two answers say the same; None if they cannot be compared now."""
        if first.split() == second.split():
            return True
        # Answers may be long, and checks are in no hurry.
        if not await asyncio.to_thread(same_facts, first, second):
            return False
        embedded = [await self._cut_vector(text) for text in (first, second)]
        try:
            vectors = [packed(one.vector) for one in embedded if one is not None]
        except ValueError:
            return None
        return cosine(*vectors) >= self._limits.agreement if len(vectors) == 2 else None

    async def _cut_vector(self, text: str) -> Embedded | None:
        return await self._embeds.run(lambda: self._embedder.embed(text, cut=True))

    def add(self, entry: Entry) -> None:
        """Note a stored answer to a question."""
        if entry.question and entry.vector and entry.expires > time.time():
            self._index.add(entry.scope, entry.key, entry.vector, entry.question)

    async def _follow(self) -> None:
        """Note the questions of all processes that use the store, as long as this one runs."""
        while True:
            found = await self._follows.run(lambda: self._store.follow(self._place, _FOLLOWED))
            more = False
            if found is not None:
                entries, self._place, more = found
                for entry in entries:
                    self.add(entry)
            await asyncio.sleep(0 if more else _FOLLOW_SECONDS)

    async def close(self) -> None:
        """Follow no longer. Idempotent."""
        tasks = [*self._vectors.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
