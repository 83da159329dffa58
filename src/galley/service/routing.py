"""What a router knows of the replicas between which it chooses."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from galley.types import EngineRequest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that accepts requests.

    Attributes:
        name: the replica's name.
        owed: tokens that its unfinished requests still need, prompts included.
        pace: its tokens per second with all seats taken; None: not measured yet.
        blocks: keys of the blocks in its prefix cache.
        silent: seconds since it last reported, if it has work; else 0.
    """

    name: str
    owed: float
    pace: float | None
    blocks: Set[bytes]
    silent: float


class Router(Protocol):
    """Chooses the replica for each request."""

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> int:
        """Return the index of the candidate that gets the request. There is at least one candidate."""

    def forget(self, name: str) -> None:
        """Forget what is known of a replica whose engine has ended."""
