"""Places for unfinished sequences, which tenants share by weight. Every method is passed the time."""

from dataclasses import dataclass
from typing import Final

from galley.service.turns import Share

DEMAND_SECONDS: Final = 5.0
"""Seconds for which a tenant refused below its share has precedence over tenants above theirs."""

_BEYOND: Final = 2
"""Hard limit as a multiple of the places, even for a tenant that holds none."""


@dataclass(slots=True)
class _Tenant:
    """The places that one tenant holds, and until when it counts as wanting more."""

    weight: float
    held: int = 0
    demand_until: float = 0.0


class Places:
    """The number of places that each tenant holds, and how many more it may take.

    While places are free, any tenant may take them. When none are free, a tenant that holds none still
    gets its first, and a tenant that was refused below its share gets those that become free, before any
    tenant above its share.

    Args:
        most: the number of places.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._tenants: dict[str, _Tenant] = {}

    def room(self, share: Share, *, now: float) -> int:
        """Return how many more places a tenant may take at once."""
        self._forget(now)
        held, total = self.holds(share), self._total(share)
        fair = self._part(share.weight, total)
        room = self.most - self.held
        if any(
            other.demand_until > now and other.held < self._part(other.weight, total)
            for name, other in self._tenants.items()
            if name != share.tenant
        ):
            room = min(room, fair - held)
        if not held:
            room = max(room, min(fair, _BEYOND * self.most - self.held))
        return max(0, room)

    def fair(self, share: Share) -> int:
        """Return the tenant's fair share of the places among the tenants that hold or want some."""
        return self._part(share.weight, self._total(share))

    def holds(self, share: Share) -> int:
        """Return how many places the tenant holds."""
        tenant = self._tenants.get(share.tenant)
        return 0 if tenant is None else tenant.held

    def want(self, share: Share, *, now: float) -> None:
        """Record that a tenant was refused."""
        self._of(share).demand_until = now + DEMAND_SECONDS

    def take(self, share: Share) -> None:
        """Give a tenant one more place."""
        self._of(share).held += 1
        self.held += 1

    def leave(self, tenant: str) -> None:
        """Take back one of a tenant's places."""
        self._tenants[tenant].held -= 1
        self.held -= 1

    def _of(self, share: Share) -> _Tenant:
        tenant = self._tenants.setdefault(share.tenant, _Tenant(share.weight))
        tenant.weight = share.weight
        return tenant

    def _total(self, share: Share) -> float:
        """Return the total weight of all tenants that hold or want places, and of this one."""
        others = (other.weight for name, other in self._tenants.items() if name != share.tenant)
        return share.weight + sum(others)

    def _part(self, weight: float, total: float) -> int:
        return max(1, int(self.most * weight / total))

    def _forget(self, now: float) -> None:
        gone = [
            n
            for n, tenant in self._tenants.items()
            if not tenant.held and tenant.demand_until <= now
        ]
        for name in gone:
            del self._tenants[name]
