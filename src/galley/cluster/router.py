"""Chooses a replica for each request by cached prefixes and predicted wait.

The router has hashes of blocks (:mod:`galley.types.block_hashes`), which replicas publish; it keeps no
prompts. A request goes to the replica that is expected to have worked off its own queue and the request's
prompt first: the tokens that its requests still need and the part of the prompt that it has not cached,
divided by its measured pace. So a cached prefix attracts requests until the queue there costs more time
than computing the prefix elsewhere would.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set
from typing import Final

from galley.service.routing import Candidate
from galley.types import BLOCK_TOKENS, EngineRequest, Generate
from galley.types.block_hashes import adapter_hash, extend_hash, salt_hash

SILENT_SECONDS: Final = 3.0
"""Age from which a working replica's figures are old; replicas report once a second."""

EXPECTED_BLOCKS: Final = 8192
"""Maximum blocks for each replica that requests sent to it are expected to leave in its cache."""

_EXPECTED_OF_REQUEST: Final = 512
"""Maximum blocks of one request that are recorded as expected."""


class PrefixRouter:
    """The default router.

    Args:
        seed: of the random choices between replicas whose figures are old; None: unpredictable.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._expected: dict[str, OrderedDict[bytes, None]] = {}

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> int:
        """See :class:`galley.service.routing.Router`."""
        held = [(one.blocks, self._expected_of(one.name).keys()) for one in candidates]
        chain = list(_hashes(request, held))
        if any(one.silent > SILENT_SECONDS for one in candidates):
            best = self._of_two(candidates)
        else:
            hits = [_hit_tokens(chain, *one) for one in held]
            best = _soonest(request.payload.reads, candidates, hits)
        expected = self._expected_of(candidates[best].name)
        for link in chain:
            expected[link] = None
            expected.move_to_end(link)
        while len(expected) > EXPECTED_BLOCKS:
            expected.popitem(last=False)
        return best

    def forget(self, name: str) -> None:
        """See :class:`galley.service.routing.Router`."""
        self._expected.pop(name, None)

    def _expected_of(self, name: str) -> "OrderedDict[bytes, None]":
        return self._expected.setdefault(name, OrderedDict())

    def _of_two(self, candidates: Sequence[Candidate]) -> int:
        """Return the one of two random candidates that owes less, so that old figures mislead few."""
        pair = self._random.sample(range(len(candidates)), min(2, len(candidates)))
        return min(pair, key=lambda index: candidates[index].owed)


def _soonest(prompt: int, candidates: Sequence[Candidate], hits: Sequence[int]) -> int:
    """Return the candidate that has computed the prompt first, as predicted."""
    paces = [one.pace for one in candidates if one.pace is not None]
    # Without a measurement, a replica counts as fast as the others on average.
    usual = sum(paces) / len(paces) if paces else 1.0

    def seconds(index: int) -> float:
        one = candidates[index]
        return (one.owed + prompt - hits[index]) / (one.pace or usual)

    return min(range(len(candidates)), key=seconds)


def _hashes(
    request: EngineRequest, held: Sequence[tuple[Set[bytes], Set[bytes]]]
) -> Iterator[bytes]:
    """Yield the hashes of a prompt's full blocks, as far as they are of use.

    Only prompts of text are cached across requests to the extent that is worth routing by.
    """
    payload = request.payload
    if not isinstance(payload, Generate):
        return
    link = salt_hash(request.cache_salt)
    if request.adapter is not None:
        link = adapter_hash(link, request.adapter.digest)
    tokens = [*payload.prompt, *payload.output]
    new = 0
    # The last token is computed in any case.
    for start in range(0, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS):
        link = extend_hash(link, tokens[start : start + BLOCK_TOKENS])
        new = new + 1 if new or not any(link in part for pair in held for part in pair) else 0
        if new > _EXPECTED_OF_REQUEST:
            return
        yield link


def cached_tokens(request: EngineRequest, caches: Sequence[Set[bytes]]) -> list[int]:
    """Return how many leading tokens of a request's prompt each cache has; ``caches``: keys of blocks."""
    chain = list(_hashes(request, [(blocks, frozenset()) for blocks in caches]))
    return [_hit_tokens(chain, blocks) for blocks in caches]


def _hit_tokens(chain: Sequence[bytes], *parts: Set[bytes]) -> int:
    """Return the leading tokens whose blocks a replica has, or is expected to have."""
    count = 0
    for link in chain:
        if not any(link in part for part in parts):
            break
        count += 1
    return count * BLOCK_TOKENS
