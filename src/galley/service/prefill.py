"""The client's view of engines that compute prompts for its own."""

from collections.abc import Coroutine, Sequence, Set
from typing import Protocol

from galley.types import EngineRequest
from galley.types.transfers import KVPeer


class PrefillPool(Protocol):
    """Engines that compute prompts, such as :class:`galley.cluster.prefill.RemotePrefill`."""

    def launch(self) -> None:
        """Connect to the engines, without waiting for them."""

    def wants(self, request: EngineRequest, held: Sequence[Set[bytes]]) -> bool:
        """Return whether the request's prompt is to be computed here.

        Args:
            request: the request.
            held: keys of the blocks in the prefix cache of each engine that may get it.
        """

    def compute(
        self, request: EngineRequest, deadline: float
    ) -> Coroutine[None, None, KVPeer | None]:
        """Compute a request's prompt and return where its blocks are; None: it could not be, in time."""

    async def close(self) -> None:
        """Disconnect."""
