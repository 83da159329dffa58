"""Whose turn it is where several tenants compete for the engine's tokens.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a tenant's virtual time grows by the tokens that its
sequences compute, divided by the tenant's weight, and the tenant with the least virtual time is next. So
each of the competing tenants gets tokens in proportion to its weight, whatever number of requests it has,
and what one does not use goes to the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from galley.types import LIVE_PRIORITY, EngineRequest


class Work(Protocol):
    """What tenants compete with: a sequence, or a text. The lesser of a tenant's own comes first."""

    @property
    def request(self) -> EngineRequest:
        """What it comes of."""

    def __lt__(self, other: Any) -> bool: ...


Candidate = TypeVar("Candidate", bound=Work)


@dataclass(slots=True)
class _Tenant:
    """``unfinished`` counts its sequences in the engine; ``time`` is its virtual time in tokens."""

    weight: float
    time: float
    unfinished: int = 0


class FairShare:
    """The tenants that have, or lately had, sequences in the engine."""

    def __init__(self, priority_tokens: int) -> None:
        """``priority_tokens``: by how much virtual time a level of priority is ahead of the next one."""
        self._priority_tokens = priority_tokens
        self._tenants: dict[str, _Tenant] = {}
        self._active: dict[str, _Tenant] = {}

    @property
    def contended(self) -> bool:
        """Whether sequences of more than one tenant are in the engine."""
        return len(self._active) > 1

    def join(self, sequence: Work) -> None:
        """A sequence of the tenant comes. Time in which a tenant had none is not made up for."""
        request = sequence.request
        tenant = self._active.get(request.tenant)
        if tenant is None:
            now = min((other.time for other in self._active.values()), default=0.0)
            if not self._active:
                self._tenants.clear()
            tenant = self._tenants.setdefault(request.tenant, _Tenant(request.weight, now))
            tenant.time = max(tenant.time, now)
            self._active[request.tenant] = tenant
        tenant.weight = request.weight
        tenant.unfinished += 1

    def leave(self, sequence: Work) -> None:
        """A sequence of the tenant is finished or aborted."""
        tenant = self._active[sequence.request.tenant]
        tenant.unfinished -= 1
        if not tenant.unfinished:
            del self._active[sequence.request.tenant]

    def charge(self, sequence: Work, tokens: int) -> None:
        """The sequence computes so many tokens. Nothing is noted while one tenant has the engine alone."""
        if len(self._active) > 1:
            tenant = self._active[sequence.request.tenant]
            tenant.time += tokens / tenant.weight

    def next(self, candidates: Iterable[Candidate]) -> Candidate:
        """The one of the ``candidates``, each its tenant's first, whose tenant's turn it is."""
        return min(candidates, key=self._place)

    def share(self, tenant: str) -> float:
        """The part of the engine that is the tenant's by weight, in (0, 1]."""
        return self._active[tenant].weight / sum(t.weight for t in self._active.values())

    def _place(self, sequence: Work) -> tuple[float, Work]:
        request = sequence.request
        # Only the operator says who comes before whom; live audio cannot wait.
        live = request.priority <= LIVE_PRIORITY
        priority = LIVE_PRIORITY if live else request.tenant_priority
        time = self._active[request.tenant].time + priority * self._priority_tokens
        return time, sequence
