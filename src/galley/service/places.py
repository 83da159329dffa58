"""Places for unfinished sequences, which tenants share by weight. Pure: every method is told the time."""

from dataclasses import dataclass
from typing import Final

from galley.service.turns import Share

WANTING_SECONDS: Final = 5.0
"""How long a tenant counts that was refused below its share: those above theirs get no place."""

_BEYOND: Final = 2
"""Times the places: no more are ever taken, whoever has none."""


@dataclass(slots=True)
class _Tenant:
    """What one tenant has, and until when it counts as one that wants more."""

    weight: float
    held: int = 0
    wanting: float = 0.0


class Places:
    """Who holds how many places, and who may have more.

    While there are free ones anybody may take them. When there are none a tenant that has none still gets
    its first, and who was refused below its share gets those that become free, before any tenant above its
    own.

    Args:
        most: how many there are.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._tenants: dict[str, _Tenant] = {}

    def room(self, share: Share, *, now: float) -> int:
        """How many more a tenant may take at once."""
        self._forget(now)
        held, total = self.holds(share), self._total(share)
        fair = self._part(share.weight, total)
        room = self.most - self.held
        if any(
            other.wanting > now and other.held < self._part(other.weight, total)
            for name, other in self._tenants.items()
            if name != share.tenant
        ):
            room = min(room, fair - held)
        if not held:
            room = max(room, min(fair, _BEYOND * self.most - self.held))
        return max(0, room)

    def fair(self, share: Share) -> int:
        """How many are the tenant's beside the others that have some, or want some."""
        return self._part(share.weight, self._total(share))

    def holds(self, share: Share) -> int:
        """How many the tenant has."""
        tenant = self._tenants.get(share.tenant)
        return 0 if tenant is None else tenant.held

    def want(self, share: Share, *, now: float) -> None:
        """A tenant was refused."""
        self._of(share).wanting = now + WANTING_SECONDS

    def take(self, share: Share) -> None:
        """A tenant has one more."""
        self._of(share).held += 1
        self.held += 1

    def leave(self, tenant: str) -> None:
        """A tenant has one less."""
        self._tenants[tenant].held -= 1
        self.held -= 1

    def _of(self, share: Share) -> _Tenant:
        tenant = self._tenants.setdefault(share.tenant, _Tenant(share.weight))
        tenant.weight = share.weight
        return tenant

    def _total(self, share: Share) -> float:
        """The weights of all tenants that have places, or want some, and of this one."""
        others = (other.weight for name, other in self._tenants.items() if name != share.tenant)
        return share.weight + sum(others)

    def _part(self, weight: float, total: float) -> int:
        return max(1, int(self.most * weight / total))

    def _forget(self, now: float) -> None:
        gone = [
            n for n, tenant in self._tenants.items() if not tenant.held and tenant.wanting <= now
        ]
        for name in gone:
            del self._tenants[name]
