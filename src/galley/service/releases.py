"""The releases of a model: which of them answers a request, and what each has to do."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from galley.errors import RequestError
from galley.service.replica import Replica
from galley.service.streams import Unfinished
from galley.types import EngineRequest
from galley.types.engine_stats import ReleaseStatus

RELEASE_HEADER: Final = "x-galley-release"
"""Header by which a request chooses its release."""


class Releases:
    """The releases of a model, and the shares of its requests that they get.

    A release is a version of the model's weights or settings. All sequences of an answer go to the same
    one: it follows from the answer's id and the shares.

    Attributes:
        shares: name of a release -> its share of the requests, in percent.
        sleeping: names of the releases that may have no replica while there are no requests.
        aliases: further name of a release -> its name.
    """

    def __init__(self) -> None:
        self.shares: Mapping[str, float] = {}
        self.sleeping: Collection[str] = ()
        self.aliases: Mapping[str, str] = {}

    def pinned(self, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
        """Return the requests of one answer, all for the same release if there are several.

        Raises:
            RequestError: they name a release that there is not.
        """
        given = requests[0].release if requests else ""
        wanted = self.aliases.get(given, given)
        if wanted and wanted not in self.shares:
            names = ", ".join(sorted({*self.shares, *self.aliases})) or "none"
            raise RequestError(
                f"The header {RELEASE_HEADER} is {given[:100]!r}; this model's releases: {names}",
                param=RELEASE_HEADER,
            )
        if not self.shares or (not wanted and len(requests) < 2):
            return list(requests)
        release = wanted or self.of(requests[0], self.shares)
        return [msgspec.structs.replace(one, release=release) for one in requests]

    def of(self, request: EngineRequest, available: Iterable[str]) -> str:
        """Return the release that answers a request, among the available ones.

        A release without a share is only chosen if no other is available.
        """
        if request.release in self.shares:
            return request.release
        names = sorted(available)
        shares = {name: self.shares.get(name, 0.0) for name in names}
        total = sum(shares.values())
        if not total:
            return names[0] if names else ""
        answer = request.id.rpartition("-")[0] or request.id
        digest = blake2b(answer.encode(), digest_size=8).digest()
        left = int.from_bytes(digest) / 2**64 * total
        for name, share in shares.items():
            left -= share
            if left < 0:
                return name
        return max(shares, key=lambda name: shares[name])

    def statuses(
        self, replicas: Sequence[Replica], unfinished: Iterable[Unfinished], parked: Replica
    ) -> list[ReleaseStatus]:
        """Return what each release has to do; ``parked``: has the requests that no replica can take."""
        accepting = [one.source.release for one in replicas if one.accepts]
        names = {*self.shares, *(one.source.release for one in replicas)}
        requests, waiting = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for one in unfinished:
            waits = one.replica is parked
            begun = one.release or (self.of(one.request, self.shares) if waits else "")
            name = begun or one.replica.source.release
            requests[name] = requests.get(name, 0) + 1
            waiting[name] = waiting.get(name, 0) + waits
        return [
            ReleaseStatus(
                name=name,
                share=self.shares.get(name, 0.0),
                replicas=accepting.count(name),
                requests=requests[name],
                waiting=waiting[name],
            )
            for name in sorted(requests)
            if name
        ]


def merged(parts: Sequence[Sequence[ReleaseStatus]]) -> Sequence[ReleaseStatus]:
    """Return what releases have to do for several clients; shares are those of the last."""
    found: dict[str, ReleaseStatus] = {}
    for one in (one for part in parts for one in part):
        before = found.get(one.name)
        found[one.name] = (
            one
            if before is None
            else msgspec.structs.replace(
                one, requests=one.requests + before.requests, waiting=one.waiting + before.waiting
            )
        )
    return list(found.values())
