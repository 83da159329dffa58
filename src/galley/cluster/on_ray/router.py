"""Ray Serve's request router of Galley's deployments.

Ray pickles this module by value, so it keeps no state and imports what is Galley's where it is used.
"""

import random
import time
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class WaitRouter(RequestRouter):  # type: ignore[misc]  # Ray's classes are untyped
    """Ranks replicas by the time to the first token that they predict.

    If the figures of a replica are old, requests go to the one of two random replicas that has fewer.
    """

    def initialize_state(self, old_seconds: float = 5.0) -> None:
        """See Ray's class. ``old_seconds``: age from which a replica's figures are old."""
        self._old_seconds = old_seconds
        self._seen: dict[str, tuple[object, float]] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """See Ray's class; also tell the other parts of this process of the replicas."""
        from galley.cluster.on_ray import directory

        super().update_replicas(replicas)
        now = time.monotonic()
        seen = self._seen
        self._seen = {}
        for one in replicas:
            key, stats = str(one.replica_id.unique_id), one.routing_stats
            before = seen.get(key)
            self._seen[key] = before if before is not None and before[0] == stats else (stats, now)
        directory.publish(
            self._deployment_id.app_name,
            self._deployment_id.name,
            {str(one.replica_id.unique_id): dict(one.routing_stats or {}) for one in replicas},
        )

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """See Ray's class."""
        known = [self._stats(one) for one in candidate_replicas]
        if not candidate_replicas or any(one is None for one in known):
            pair = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
            return [pair]
        ranked = sorted(
            zip(candidate_replicas, known, strict=True), key=lambda pair: _wait(pair[1] or {})
        )
        return [[one] for one, _ in ranked]

    def _stats(self, replica: RunningReplica) -> dict[str, Any] | None:
        """Return what a replica last recorded; None if that is old, or nothing."""
        stats, since = self._seen.get(str(replica.replica_id.unique_id), ({}, 0.0))
        busy = bool(stats) and stats.get("requests", 0) > 0  # type: ignore[attr-defined]
        if not stats or (busy and time.monotonic() - since > self._old_seconds):
            return None
        return stats  # type: ignore[return-value]


def _wait(stats: dict[str, Any]) -> tuple[float, int]:
    return stats.get("first_token_seconds", 0.0), stats.get("requests", 0)
