"""Who asks: what every request brings to the gateway, whatever protocol it came by."""

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from galley.errors import RateLimited
from galley.gateway.derived import Derived
from galley.gateway.key_file import LOWEST_PRIORITY, Tenant
from galley.gateway.tenants import ANYBODY, Account
from galley.observe.tenants import TenantMetrics
from galley.observe.tracing import Trace
from galley.service.turns import Share
from galley.types import LIVE_PRIORITY, Adapter, EngineRequest


@dataclass(eq=False)
class Caller:
    """Where a request comes from.

    Attributes:
        request_id: unique; the engine's request ids and the answer's id are made of it.
        account: of the tenant whose key was presented.
        record: what the request's log line will tell, name -> value.
        arrived: on the monotonic clock, in seconds.
        deadline: on the same clock: until when the answer is of use; infinite where that is not known.
        trace: what its trace will tell.
        adapter: the LoRA adapter that the request names, once its model is found.
        derived: the further name by which the request names its model, if it does.
    """

    request_id: str
    account: Account = field(default_factory=lambda: Account(ANYBODY))
    record: dict[str, Any] = field(default_factory=dict)
    arrived: float = field(default_factory=time.monotonic)
    deadline: float = math.inf
    trace: Trace = field(default_factory=Trace)
    adapter: Adapter | None = None
    derived: Derived | None = None

    @property
    def tenant(self) -> Tenant:
        """Who asks; tenants never share cached prefixes."""
        return self.account.tenant

    @property
    def share(self) -> Share:
        """Of what tenants share by their weights."""
        return Share(self.tenant.name, self.tenant.weight)

    def marked(self, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
        """The requests with what the engine must know of the tenant."""
        tenant = self.tenant
        return [
            msgspec.structs.replace(
                request,
                tenant=tenant.name,
                weight=tenant.weight,
                tenant_priority=tenant.priority,
                priority=self.priority(request.priority),
                adapter=self.adapter,
            )
            for request in requests
        ]

    def priority(self, wanted: int) -> int:
        """The priority of a request that asks for ``wanted``.

        Live audio keeps its own; a text's stays within what requests may ask for.
        """
        if wanted == LIVE_PRIORITY:
            return LIVE_PRIORITY
        return max(-LOWEST_PRIORITY, min(LOWEST_PRIORITY, wanted + self.tenant.priority))

    @contextmanager
    def limited(self, metrics: TenantMetrics) -> Iterator[None]:
        """Counts what the tenant's limits refuse within."""
        try:
            yield
        except RateLimited as limited:
            metrics.limited(self.tenant.name, limited.limit)
            raise

    def cache_salt(self, salt: str | None = None) -> str:
        """What separates prefix caches: the tenant's name, and the ``cache_salt`` of the request."""
        if not self.tenant.name and salt is None:
            return ""
        digest = hashlib.sha256()
        for part in (self.tenant.name, salt or ""):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()
