"""The models by which the response cache compares questions: of this server, or of another one."""

import asyncio
import itertools
import json
import urllib.error
import urllib.request
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from galley.cache.keys import digest
from galley.cache.response_cache import ResponseCache
from galley.cache.store import StoreError
from galley.errors import GalleyError, RequestError, SettingsError
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel
from galley.gateway.vectors import Prepared, Vectors, cut_to
from galley.json_http import exchange, is_key, is_server, route_of
from galley.service.vector_requests import prompt_of
from galley.settings.config import Settings
from galley.types import Task

if TYPE_CHECKING:
    from galley.cache.semantic import Embedded, Semantic

T = TypeVar("T")

ENDPOINT: Final = "response cache"
"""The endpoint of these requests in the models' metrics."""
_REMOTE_SECONDS: Final = 1.0
_VECTOR_BYTES: Final = 1 << 20
"""Most bytes of another server's answer, for each text."""
_CUT_CHARACTERS: Final = 1000
"""Characters to which texts for another server are cut; that server has a limit of its own."""
_NOT_TAKEN: Final = (400, 413, 422)
"""Statuses that say that a text, not the server, is at fault."""


class FindsModels(Protocol):
    """The part of :class:`galley.gateway.registry.Registry` that is needed."""

    def find(
        self, name: str | None, task: Task | None = None, caller: Caller | None = None
    ) -> Coroutine[Any, Any, ServedModel]:
        """See :meth:`galley.gateway.registry.Registry.find`."""


class ServedComparer:
    """Vectors and scores by models of this server."""

    def __init__(self, models: FindsModels, embedder: str, ranker: str) -> None:
        """Compare with served models.

        Args:
            models: finds them.
            embedder: name of the embedding model.
            ranker: name of the reranker; "": none.
        """
        self._models = models
        self._embedder = embedder
        self._ranker = ranker
        self._count = itertools.count()

    async def embed(self, text: str, *, cut: bool = False) -> "Embedded | None":
        """See :class:`galley.cache.semantic.Embedder`."""
        from galley.cache.semantic import Embedded

        async def work(call: Call) -> Embedded:
            text_and_prompt = prompt_of(None, call.info, param="input") + text
            most = cut_to(call, -1 if cut else None)
            if most is None:
                [ids] = await call.text.encode([text_and_prompt])
            else:
                [ids] = await call.text.encode_cut([text_and_prompt], most)
            [vector] = await _vectors(call, [Prepared(ids, "input")])
            responses = call.backend.responses
            return Embedded(b"" if responses is None else responses.identity, vector)

        return await self._with(self._embedder, "embed", work)

    async def scores(self, text: str, others: Sequence[str]) -> list[float] | None:
        """See :class:`galley.cache.semantic.Ranker`."""

        async def work(call: Call) -> list[float]:
            types = call.info.vectors is not None and call.info.vectors.pair_types
            pairs = await call.text.encode_pairs(text, list(others), None, None)
            prepared = [Prepared(ids, "pair", second if types else 0) for ids, second in pairs]
            return [array("f", score)[0] for score in await _vectors(call, prepared)]

        return await self._with(self._ranker, "rerank", work)

    async def _with(
        self, name: str, task: Task, work: "Callable[[Call], Coroutine[Any, Any, T]]"
    ) -> T | None:
        """Return the result of ``work`` with a call to a model; None if the model does not take the text.

        Raises:
            StoreError: the model cannot be used now, or not for this task.
        """
        caller = Caller(f"compare-{next(self._count)}")
        try:
            served = await self._models.find(name, task, caller)
            with opened(Call(served, ENDPOINT, caller)) as call:
                try:
                    return await work(call)
                except RequestError:
                    return None
        except GalleyError as error:
            raise StoreError(f"{name}: {error}") from error


async def _vectors(call: Call, texts: Sequence[Prepared]) -> list[bytes]:
    vectors = Vectors(call, texts)
    try:
        return await vectors.all()
    finally:
        vectors.close()


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class RemoteEmbedder:
    """Vectors by a server with OpenAI's API."""

    def __init__(self, url: str, model: str, key: str) -> None:
        """Describe the server.

        Args:
            url: its URL, such as ``http://localhost:8000``, with or without ``/v1``.
            model: the model's name there.
            key: its key; "": none.

        Raises:
            SettingsError: the URL is not one of a server, or the key cannot be sent.
        """
        if not is_server(url):
            raise SettingsError(
                "semantic_cache_url is not a URL such as http://HOST:PORT (without a name or password)"
            )
        if not is_key(key):
            raise SettingsError(
                "semantic_cache_api_key has characters that no header can have, such as a line's end"
            )
        self._address = route_of(url, "/v1/embeddings")
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._identity = digest(b"remote embedder", self._address.encode(), model.encode())

    async def embed(self, text: str, *, cut: bool = False) -> "Embedded | None":
        """See :class:`galley.cache.semantic.Embedder`."""
        from galley.cache.semantic import Embedded

        text = text[:_CUT_CHARACTERS] if cut else text
        found = await asyncio.to_thread(self.vectors, [text], _REMOTE_SECONDS)
        return None if found is None else Embedded(self._identity, found[0])

    def vectors(self, texts: Sequence[str], seconds: float) -> list[bytes] | None:
        """Return the vector of each text, as float32; None if the server does not take one of them.

        Raises:
            StoreError: the server cannot be used, or has not answered after this many seconds.
        """
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self._address, json.dumps(body).encode(), self._headers
        )
        try:
            answer = exchange(request, timeout=seconds, most=_VECTOR_BYTES * len(texts))
            data = msgspec.json.decode(answer, type=_Embeddings).data
        except urllib.error.HTTPError as error:
            if error.code in _NOT_TAKEN:
                return None
            raise StoreError(f"{self._address} answered {error.code}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"{self._address}: {error}") from error
        if len(data) != len(texts):
            raise StoreError(f"{self._address}: {len(data)} vectors for {len(texts)} texts")
        return [array("f", one.embedding).tobytes() for one in sorted(data, key=_index)]


def _index(one: _Embedding) -> int:
    return one.index


def semantic_cache(
    settings: Settings, cache: ResponseCache, models: FindsModels
) -> "Semantic | None":
    """Return the part of the response cache that compares questions; None without an embedding model.

    Raises:
        SettingsError: a setting that it needs is missing or cannot be used.
    """
    name, url = settings.semantic_cache_model, settings.semantic_cache_url
    if not name:
        if any(own.response_cache == "semantic" for own in settings.each_model()):
            raise SettingsError(
                "response_cache is semantic, but there is no semantic_cache_model: name the served "
                "embedding model that compares questions"
            )
        return None
    if settings.semantic_cache_threshold is None:
        raise SettingsError(
            f"semantic_cache_model is {name!r}, but there is no semantic_cache_threshold: galley cache "
            "tune finds the one that suits the model and your questions"
        )
    ranker = settings.semantic_cache_reranker
    if bool(ranker) != (settings.semantic_cache_reranker_threshold is not None):
        raise SettingsError(
            "semantic_cache_reranker and semantic_cache_reranker_threshold belong together; give both or "
            "none"
        )
    from galley.cache.semantic import Limits, Semantic

    served = ServedComparer(models, name, ranker)
    limits = Limits(
        threshold=settings.semantic_cache_threshold,
        ranking=settings.semantic_cache_reranker_threshold,
        agreement=settings.semantic_cache_agreement,
        entries=settings.semantic_cache_entries,
    )
    embedder = RemoteEmbedder(url, name, settings.semantic_cache_api_key) if url else served
    return Semantic(cache.read, cache.store, embedder, served if ranker else None, limits)
