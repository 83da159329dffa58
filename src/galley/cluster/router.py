"""Chooses a replica for each request by cached prefixes and predicted wait.

The router has hashes of blocks (:mod:`galley.types.block_hashes`), which replicas publish; it keeps no
prompts. A request goes to the replica that is expected to have worked off its own queue and the request's
prompt first: the tokens that it still has to compute for its requests and the part of the prompt that it
has not cached, divided by its measured pace. So a cached prefix attracts requests until the queue there
costs more time than computing the prefix elsewhere would.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from galley.service.routing import Candidate, Choice
from galley.types import BLOCK_TOKENS, EngineRequest, Generate
from galley.types.block_hashes import adapter_hash, extend_hash, salt_hash

SILENT_SECONDS: Final = 3.0
"""Age from which a working replica's figures are old; replicas report once a second."""

EXPECTED_BLOCKS: Final = 8192
"""Maximum blocks for each replica that requests sent to it are expected to leave in its cache."""

_EXPECTED_OF_REQUEST: Final = 512
"""Maximum blocks of one request that are recorded as expected, after those that a replica has."""

_NONE: Final[Mapping[bytes, None]] = {}


class PrefixRouter:
    """The default router.

    Args:
        seed: of the random choices between replicas whose figures are old; None: unpredictable.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._expected: dict[str, OrderedDict[bytes, None]] = {}

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> Choice:
        """See :class:`galley.service.routing.Router`."""
        chain, hits = self._match(request, candidates)
        if any(one.silent > SILENT_SECONDS for one in candidates):
            best = self._of_two(candidates)
        else:
            best = _soonest(request.payload.reads, candidates, hits)
        expected = self._expected.setdefault(candidates[best].name, OrderedDict())
        for link in chain:
            expected[link] = None
            expected.move_to_end(link)
        while len(expected) > EXPECTED_BLOCKS:
            expected.popitem(last=False)
        return Choice(best, hits.get(best, 0))

    def forget(self, name: str) -> None:
        """See :class:`galley.service.routing.Router`."""
        self._expected.pop(name, None)

    def _match(
        self, request: EngineRequest, candidates: Sequence[Candidate]
    ) -> tuple[list[bytes], dict[int, int]]:
        """Return the hashes of the prompt's blocks, as far as they are of use, and the candidates' hits.

        A candidate's hits are the leading tokens whose blocks it has, or is expected to have.
        """
        expected = [self._expected.get(one.name, _NONE) for one in candidates]
        matching: Sequence[int] = range(len(candidates))
        chain: list[bytes] = []
        hits: dict[int, int] = {}
        for link in _hashes(request):
            matching = [i for i in matching if link in expected[i] or link in candidates[i].blocks]
            chain.append(link)
            hits.update(dict.fromkeys(matching, len(chain) * BLOCK_TOKENS))
            if len(chain) - max(hits.values(), default=0) // BLOCK_TOKENS == _EXPECTED_OF_REQUEST:
                break
        return chain, hits

    def _of_two(self, candidates: Sequence[Candidate]) -> int:
        """Return the one of two random candidates that owes less, so that old figures mislead few."""
        pair = self._random.sample(range(len(candidates)), min(2, len(candidates)))
        return min(pair, key=lambda index: candidates[index].owed)


def _soonest(prompt: int, candidates: Sequence[Candidate], hits: Mapping[int, int]) -> int:
    """Return the candidate that has computed the prompt first, as predicted."""
    paces = [one.pace for one in candidates if one.pace is not None]
    # Without a measurement, a replica counts as fast as the others on average.
    usual = sum(paces) / len(paces) if paces else 1.0
    seconds = [
        (one.owed + prompt - hits.get(index, 0)) / (one.pace or usual)
        for index, one in enumerate(candidates)
    ]
    return seconds.index(min(seconds))


def _hashes(request: EngineRequest) -> Iterator[bytes]:
    """Yield the hashes of a prompt's full blocks.

    Only prompts of text are cached across requests to the extent that is worth routing by.
    """
    payload = request.payload
    if not isinstance(payload, Generate):
        return
    link = salt_hash(request.cache_salt)
    if request.adapter is not None:
        link = adapter_hash(link, request.adapter.digest)
    tokens = [*payload.prompt, *payload.output]
    # The last token is computed in any case.
    for start in range(0, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS):
        link = extend_hash(link, tokens[start : start + BLOCK_TOKENS])
        yield link


def cached_tokens(request: EngineRequest, caches: Sequence[Set[bytes]]) -> list[int]:
    """Return how many leading tokens of a request's prompt each cache has; ``caches``: keys of blocks."""
    counts = [0] * len(caches)
    matching: Sequence[int] = range(len(caches))
    for number, link in enumerate(_hashes(request), 1):
        matching = [i for i in matching if link in caches[i]]
        if not matching:
            break
        for i in matching:
            counts[i] = number * BLOCK_TOKENS
    return counts
