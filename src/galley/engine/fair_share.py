"""Decides whose turn it is when several tenants compete for the engine's tokens.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a tenant's virtual time grows by the tokens that
its sequences compute, divided by the tenant's weight, and the tenant with the least virtual time is next.
Each of the competing tenants thus gets tokens in proportion to its weight, however many requests it has,
and the share that one does not use goes to the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from galley.types import LIVE_PRIORITY, EngineRequest


class Work(Protocol):
    """A tenant's work: a sequence or a text. The smallest of a tenant's items comes first."""

    @property
    def request(self) -> EngineRequest:
        """The request that the work belongs to."""

    def __lt__(self, other: Any) -> bool: ...


Candidate = TypeVar("Candidate", bound=Work)


@dataclass(slots=True)
class _Tenant:
    """``unfinished`` counts its sequences in the engine; ``time`` is its virtual time in tokens."""

    weight: float
    time: float
    unfinished: int = 0


class FairShare:
    """The tenants that have, or recently had, sequences in the engine."""

    def __init__(self, priority_tokens: int) -> None:
        """Start without tenants.

        Args:
            priority_tokens: by how much virtual time each level of priority is ahead of the next.
        """
        self._priority_tokens = priority_tokens
        self._tenants: dict[str, _Tenant] = {}
        self._active: dict[str, _Tenant] = {}

    @property
    def contended(self) -> bool:
        """Whether sequences of more than one tenant are in the engine."""
        return len(self._active) > 1

    def join(self, sequence: Work) -> None:
        """Add a sequence of a tenant, which gets no credit for time in which it had none."""
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
        """Remove a finished or aborted sequence of a tenant."""
        tenant = self._active[sequence.request.tenant]
        tenant.unfinished -= 1
        if not tenant.unfinished:
            del self._active[sequence.request.tenant]

    def charge(self, sequence: Work, tokens: int) -> None:
        """Charge the tenant for tokens that a sequence computes, unless it has the engine to itself."""
        if len(self._active) > 1:
            tenant = self._active[sequence.request.tenant]
            tenant.time += tokens / tenant.weight

    def next(self, candidates: Iterable[Candidate]) -> Candidate:
        """Return the candidate, among each tenant's first, whose tenant's turn it is."""
        return min(candidates, key=self._place)

    def share(self, tenant: str) -> float:
        """Return the tenant's share of the engine by weight, in (0, 1]."""
        return self._active[tenant].weight / sum(t.weight for t in self._active.values())

    def _place(self, sequence: Work) -> tuple[float, Work]:
        request = sequence.request
        # Priority between tenants is the operator's decision; live audio cannot wait.
        live = request.priority <= LIVE_PRIORITY
        priority = LIVE_PRIORITY if live else request.tenant_priority
        time = self._active[request.tenant].time + priority * self._priority_tokens
        return time, sequence
