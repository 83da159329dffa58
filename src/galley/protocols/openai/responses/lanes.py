"""The latest response of each lane of a WebSocket, which the lane's next request can continue.

A lane is the requests of a connection with the same ``stream_id``. These responses are kept even if
``store`` is false, but never longer than the connection.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from galley.protocols.openai.responses.store import ResponseStore, StoredResponse

_MOST_RESPONSES: Final = 1 << 20
"""More than there can be: they are bounded by their bytes."""


def connection_store(most_bytes: int, seconds: float) -> ResponseStore:
    """Return an empty store for the lanes of all connections.

    Args:
        most_bytes: the most bytes; tenants have fair shares of them.
        seconds: age after which a response is dropped.
    """
    return ResponseStore(most=_MOST_RESPONSES, most_bytes=most_bytes, seconds=seconds)


class ConnectionResponses:
    """The responses of one connection's lanes."""

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        """Begin without responses; ``store`` is that of all connections."""
        self._store = store
        self._tenant = tenant
        self._names: dict[str | None, str] = {}

    def find(self, name: str) -> StoredResponse | None:
        """Return a response by id; None if no lane has it."""
        return self._store.find(self._tenant, name) if name in self._names.values() else None

    def keep(self, stream_id: str | None, name: str, response: StoredResponse) -> None:
        """Keep a response instead of the lane's last one."""
        if (last := self._names.pop(stream_id, None)) is not None:
            self._store.remove(self._tenant, last)
        if self._store.keep(self._tenant, name, response):
            self._names[stream_id] = name

    def forget(self, name: str) -> None:
        """Drop a response, if a lane has it."""
        for stream_id, kept in list(self._names.items()):
            if kept == name:
                del self._names[stream_id]
                self._store.remove(self._tenant, name)

    def close(self) -> None:
        """Drop all responses."""
        for name in list(self._names.values()):
            self.forget(name)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What one request of a lane finds and keeps.

    Attributes:
        find: returns a response of the connection by id; None if no lane has it.
        keep: keeps a response, by id, as the lane's latest.
        only_prepares: whether the request is computed for later ones, without an answer.
    """

    find: Callable[[str], StoredResponse | None]
    keep: Callable[[str, StoredResponse], None]
    only_prepares: bool
