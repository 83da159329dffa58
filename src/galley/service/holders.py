"""Blocks of a prompt that a replica has not and another one has: they move with a session."""

from collections.abc import Callable, Sequence, Set
from typing import Final, TypeAlias

import msgspec

from galley.service.replica import Replica
from galley.types import EngineRequest
from galley.types.transfers import KVPeer

_LEAST_TOKENS: Final = 256
"""Tokens that another replica has to have, and the one that gets a request has not, to be fetched."""

CachedTokens: TypeAlias = Callable[[EngineRequest, Sequence[Set[bytes]]], Sequence[int]]
"""Returns how many leading tokens of a request's prompt each of several caches has, by keys of blocks."""


def with_holder(
    request: EngineRequest, replica: Replica, replicas: Sequence[Replica], count: CachedTokens
) -> EngineRequest:
    """Return a request as it is to be sent to a replica: with the peer that has more of its prompt.

    Args:
        request: the request.
        replica: the replica that gets it.
        replicas: all replicas of the model.
        count: compares the prompt with caches.
    """
    if request.kv_from is not None or not replica.fetches:
        return request
    others = [one for one in replicas if one is not replica and one.offers is not None]
    if not others:
        return request
    own, *theirs = count(request, [one.blocks for one in (replica, *others)])
    tokens, at = max((tokens, at) for at, tokens in enumerate(theirs))
    where = others[at].offers
    if where is None or tokens - own < _LEAST_TOKENS:
        return request
    peer = KVPeer(where.host, where.port, tokens)
    return msgspec.structs.replace(request, kv_from=peer)
