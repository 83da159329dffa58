"""What a router knows of the replicas between which it chooses."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from galley.types import EngineRequest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that accepts requests.

    Attributes:
        name: the replica's name.
        owed: tokens that it still has to compute for its unfinished requests: parts of prompts that it has
            not cached, and outputs.
        pace: the tokens that it computes per second with all seats taken; None: not measured yet.
        blocks: keys of the blocks in its prefix cache.
        silent: seconds since it last reported, if it has work; else 0.
    """

    name: str
    owed: float
    pace: float | None
    blocks: Set[bytes]
    silent: float


class Choice(NamedTuple):
    """The replica that gets a request.

    Attributes:
        candidate: its index among the candidates.
        cached: leading tokens of the prompt that it is expected to have in its prefix cache.
    """

    candidate: int
    cached: int = 0


class Router(Protocol):
    """Chooses the replica for each request."""

    def choose(self, request: EngineRequest, candidates: Sequence[Candidate]) -> Choice:
        """Choose the candidate that gets the request. There is at least one candidate."""

    def forget(self, name: str) -> None:
        """Forget what is known of a replica whose engine has ended."""
