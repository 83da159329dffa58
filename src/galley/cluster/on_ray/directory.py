"""The replicas of deployments, as Ray Serve last sent them to the routers in this process."""

import threading
from collections.abc import Mapping
from typing import Any

_lock = threading.Lock()
_known: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}


def publish(app: str, deployment: str, replicas: dict[str, Mapping[str, Any]]) -> None:
    """Record the replicas of a deployment: id -> what the replica last recorded about itself."""
    with _lock:
        _known[app, deployment] = replicas


def replicas_of(app: str, deployment: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the replicas of a deployment; empty if its router has received none."""
    with _lock:
        return dict(_known.get((app, deployment), {}))
