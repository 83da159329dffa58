"""The routers that a simulation compares: that of production, and three that are usual elsewhere."""

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from galley.cluster.router import PrefixRouter
from galley.service.routing import Candidate, Choice, Router
from galley.types import BLOCK_TOKENS, EngineRequest, Generate
from galley.types.block_hashes import HashChain, salt_hash

_REMEMBERED: Final = 8192
"""Most blocks of each replica that prefix affinity remembers."""

_MATCH: Final = 0.1
"""Share of a prompt from which prefix affinity follows the prefix, as in Ray."""

_IMBALANCE: Final = 10
"""Difference of requests above which prefix affinity ignores prefixes, as in Ray."""


@runtime_checkable
class Counted(Protocol):
    """A candidate whose unfinished requests are known, as in Ray."""

    @property
    def requests(self) -> int:
        """Requests that have not ended."""


class RoundRobin:
    """Takes the replicas in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> Choice:
        """See :class:`galley.service.routing.Router`."""
        self._next += 1
        return Choice((self._next - 1) % len(candidates))

    def forget(self, name: str) -> None:
        """See :class:`galley.service.routing.Router`."""


class PowerOfTwo:
    """Takes the one of two random replicas that owes less (Mitzenmacher 2001)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> Choice:
        """See :class:`galley.service.routing.Router`."""
        pair = self._random.sample(range(len(candidates)), min(2, len(candidates)))
        return Choice(min(pair, key=lambda index: candidates[index].owed))

    def forget(self, name: str) -> None:
        """See :class:`galley.service.routing.Router`."""


class Affinity:
    """Follows the longest prefix that it has sent to a replica, as Ray's PrefixCacheAffinityRouter does.

    If the best match is a tenth of the prompt or more, a replica with that match gets the request; else one
    of those with the fewest remembered prefixes. If one has over ten requests more than another, prefixes
    do not count. Of two random ones of those that remain, the one with fewer requests is taken. The limits
    are Ray's defaults; Ray compares characters, this blocks.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sent: dict[str, OrderedDict[bytes, None]] = {}

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> Choice:
        """See :class:`galley.service.routing.Router`."""
        assert isinstance(request.payload, Generate)
        prompt = request.payload.prompt
        count = len(prompt) // BLOCK_TOKENS
        chain = HashChain(salt_hash(request.cache_salt)).upto(prompt, count)
        sent = [self._sent.setdefault(one.name, OrderedDict()) for one in candidates]
        requests = [one.requests for one in candidates if isinstance(one, Counted)]
        assert len(requests) == len(candidates)
        matches = [leading(chain, known) for known in sent]
        best, among = max(matches), range(len(candidates))
        if max(requests) - min(requests) > _IMBALANCE:
            near: Sequence[int] = among
        elif best and best * BLOCK_TOKENS >= _MATCH * len(prompt):
            near = [index for index in among if matches[index] == best]
        else:
            fewest = min(map(len, sent))
            near = [index for index in among if len(sent[index]) == fewest]
        chosen = min(self._random.sample(near, min(2, len(near))), key=requests.__getitem__)
        known = sent[chosen]
        for link in chain:
            known[link] = None
            known.move_to_end(link)
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
        return Choice(chosen, matches[chosen] * BLOCK_TOKENS)

    def forget(self, name: str) -> None:
        """See :class:`galley.service.routing.Router`."""
        self._sent.pop(name, None)


def leading(chain: Sequence[bytes], known: Mapping[bytes, None]) -> int:
    """Return how many blocks at the start of a chain are known."""
    for count, link in enumerate(chain):
        if link not in known:
            return count
    return len(chain)


ROUTERS: Final[Mapping[str, Callable[[int], Router]]] = {
    "galley": PrefixRouter,
    "round-robin": lambda seed: RoundRobin(),
    "power-of-two": PowerOfTwo,
    "affinity": Affinity,
}
"""Name -> what makes the router from the seed of its random choices."""
