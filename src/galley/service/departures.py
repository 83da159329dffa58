"""How replicas leave a fleet: others continue their requests first."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from galley.errors import Conflict, RequestError
from galley.service.frames import Released
from galley.service.releases import Releases
from galley.service.replica import Replica
from galley.service.request_book import RequestBook

log = logging.getLogger("galley.service")

_POLL_SECONDS: Final = 0.05

FETCH_SECONDS: Final = 5.0
"""How long a replica that leaves waits at most until others have fetched the blocks of its requests."""

_GONE: Final = ("failed", "closed", "stalled", "recovering", "starting")
"""States of a replica that completes nothing any more."""


class Departures:
    """Removes replicas from a fleet. For use in one event loop."""

    def __init__(
        self,
        replicas: list[Replica],
        book: RequestBook,
        releases: Releases,
        parked: Replica,
        changed: Callable[[Replica], None],
        removed: Callable[[Replica], None],
    ) -> None:
        """Create it.

        Args:
            replicas: those of the fleet.
            book: the unfinished requests.
            releases: the releases that are listed.
            parked: where requests wait while no replica can take them.
            changed: called when a replica gets no new requests from now on.
            removed: called when a replica is no longer among those of the fleet.
        """
        self._replicas = replicas
        self._book = book
        self._releases = releases
        self._parked = parked
        self._changed = changed
        self._removed = removed

    async def drain(self, name: str) -> None:
        """Have other replicas continue the requests of one, and remove it.

        Requests that no other replica can continue are completed first.

        Raises:
            RequestError: there is no such replica.
            Conflict: no other replica is ready.
        """
        replica = next((one for one in self._replicas if one.name == name), None)
        if replica is None:
            names = ", ".join(one.name for one in self._replicas)
            raise RequestError(f"there is no replica {name!r}; there are: {names}", param="replica")
        if not any(other.accepts for other in self._replicas if other is not replica):
            raise Conflict(f"no other replica is ready, so {name} cannot be drained")
        log.info("draining replica %s", name)
        await self._emptied(replica, ("failed", "closed"))
        await self._remove(replica)

    async def retire(self, replica: Replica) -> None:
        """Remove a replica that is no longer listed, once others have its requests or it finished them."""
        await self._emptied(replica, _GONE)
        self._book.move(replica, self._parked)
        self.end_orphans()
        await self._remove(replica)

    async def hand_over(self, replica: Replica) -> None:
        """Have others continue the requests of a replica that is about to end, and tell it when they do.

        It may come back, and is then no longer draining: it is not removed.
        """
        while replica.draining and replica.state not in _GONE and self._book.has_any_of(replica):
            self._book.move(replica)
            await asyncio.sleep(_POLL_SECONDS)
        await self._fetched(replica)
        if replica.draining:
            replica.send(Released())

    def end_orphans(self) -> None:
        """End the waiting answers that a release has begun which is no longer listed."""
        error = "the release that had begun the answer was removed before the answer was complete"
        self._book.end_begun(self._parked, self._releases.shares, error)

    async def _emptied(self, replica: Replica, hopeless: tuple[str, ...]) -> None:
        """Give a replica no new requests, and wait until it has none, or its state is hopeless."""
        replica.draining = True
        self._changed(replica)
        self._book.move(replica)
        while self._book.has_any_of(replica) and replica.state not in hopeless:
            await asyncio.sleep(_POLL_SECONDS)
            self._book.move(replica)
        await self._fetched(replica)

    async def _fetched(self, replica: Replica) -> None:
        """Wait until moved requests have continued elsewhere: until then, they may fetch its blocks."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_SECONDS):
                while replica.offers is not None and self._book.waits_for(replica):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)

    async def _remove(self, replica: Replica) -> None:
        await replica.close()
        if replica not in self._replicas:
            return  # it was drained twice at the same time
        self._replicas.remove(replica)
        self._removed(replica)
        log.info("replica %s has left", replica.name)
