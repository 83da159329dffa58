"""A router's view of the replicas among which it chooses."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from galley.types import EngineRequest


class Candidate(Protocol):
    """A replica that accepts requests, as a router sees it."""

    @property
    def name(self) -> str:
        """The replica's name."""

    @property
    def owed(self) -> float:
        """The tokens that it still has to compute for its unfinished requests.

        These are the parts of prompts that it has not cached, and outputs.
        """

    @property
    def pace(self) -> float | None:
        """The tokens that it computes per second with all seats taken; None: not measured yet."""

    @property
    def blocks(self) -> Set[bytes]:
        """The keys of the blocks in its prefix cache."""

    @property
    def silent(self) -> float:
        """The seconds since it last reported, if it has work; else 0."""


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """The figures of a :class:`Candidate` at one time."""

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
