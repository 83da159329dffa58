"""The caller of a request: the data that every request brings to the gateway, whatever its protocol."""

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from galley.cache.directives import NO_DIRECTIVES, Directives, Outcome
from galley.errors import RateLimited
from galley.gateway.derived import Derived
from galley.gateway.key_file import LOWEST_PRIORITY, Tenant
from galley.gateway.tenants import ANONYMOUS, Account
from galley.observe.tenants import TenantMetrics
from galley.observe.tracing import Trace
from galley.service.turns import Share
from galley.types import LIVE_PRIORITY, Adapter, EngineRequest
from galley.types.transfers import KVPeer


@dataclass(eq=False)
class Caller:
    """The origin of a request, and its data that do not depend on the protocol.

    Attributes:
        request_id: unique; the engine's request ids and the answer's id are derived from it.
        account: the account of the tenant whose key was presented.
        record: fields of the request's log line, name -> value.
        arrived: arrival time on the monotonic clock, in seconds.
        deadline: time on the same clock after which the answer is useless; infinite if unknown.
        trace: data for the request's trace.
        adapter: the LoRA adapter that the request names, once its model is found.
        keep_seconds: how long the request's prefix stays cached while others are evicted first.
        directives: what the request says about caching.
        streams: whether the answer is sent as it arrives; a whole one comes at once if it is stored.
        cached: what the response cache did; None: it was not involved.
        headers: headers of the response.
        flow: requests of a tenant's different flows share the model like tenants.
        objective: priority of the request's objective, added to that of the tenant.
        first_token_by: time by which the first token has to be expected for the request to be admitted.
        offered: whether another server will fetch the prompt's keys and values.
        kv_from: where those of the prompt are.
        derived: the derived model by whose name the request names its model, if it does.
        release: the release of the model that has to answer; empty: any.
    """

    request_id: str
    account: Account = field(default_factory=lambda: Account(ANONYMOUS))
    record: dict[str, Any] = field(default_factory=dict)
    arrived: float = field(default_factory=time.monotonic)
    deadline: float = math.inf
    trace: Trace = field(default_factory=Trace)
    adapter: Adapter | None = None
    derived: Derived | None = None
    keep_seconds: float = 0.0
    directives: Directives = NO_DIRECTIVES
    streams: bool = True
    cached: Outcome | None = None
    headers: dict[str, str] = field(default_factory=dict)
    flow: str = ""
    objective: int = 0
    first_token_by: float = math.inf
    release: str = ""
    offered: bool = False
    kv_from: KVPeer | None = None

    @property
    def tenant(self) -> Tenant:
        """The caller's tenant; tenants never share cached prefixes."""
        return self.account.tenant

    @property
    def share(self) -> Share:
        """The tenant's share of the resources that tenants share by weight."""
        return Share(self._flow_name, self.tenant.weight)

    @property
    def scheduled_by(self) -> float:
        """Time by which the request's computation has to be expected to begin, at the latest."""
        return min(self.deadline, self.first_token_by)

    @property
    def _flow_name(self) -> str:
        """The name under which the request competes; names of tenants have no slash."""
        return f"{self.tenant.name}/{self.flow}" if self.flow else self.tenant.name

    def again(self, request_id: str) -> "Caller":
        """Return the caller of a new request that arrives now, with the same times to its deadlines."""
        now = time.monotonic()
        return replace(
            self,
            request_id=request_id,
            record={"tenant": self.tenant.name} if self.tenant.name else {},
            arrived=now,
            deadline=now + self.deadline - self.arrived,
            first_token_by=now + self.first_token_by - self.arrived,
            trace=Trace(),
            adapter=None,
            derived=None,
            cached=None,
            headers={},
        )

    def marked(self, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
        """Return the requests with the tenant's fields, which the engine needs, and the adapter."""
        tenant = self.tenant
        return [
            msgspec.structs.replace(
                request,
                tenant=self._flow_name,
                weight=tenant.weight,
                tenant_priority=tenant.priority,
                priority=self.priority(request.priority),
                adapter=self.adapter,
                keep_seconds=self.keep_seconds,
                release=self.release,
                offered=self.offered,
                kv_from=self.kv_from,
            )
            for request in requests
        ]

    def priority(self, wanted: int) -> int:
        """Return the priority of a request that requests ``wanted``.

        Live audio keeps its priority; that of a text stays within the range that requests may use.
        """
        if wanted == LIVE_PRIORITY:
            return LIVE_PRIORITY
        return max(
            -LOWEST_PRIORITY, min(LOWEST_PRIORITY, wanted + self.tenant.priority + self.objective)
        )

    @contextmanager
    def limited(self, metrics: TenantMetrics) -> Iterator[None]:
        """Count requests that the tenant's limits refuse within the block."""
        try:
            yield
        except RateLimited as limited:
            self.account.count(metrics.limited(self.tenant.name, limited.limit), 1)
            raise

    def cache_salt(self, salt: str | None = None) -> str:
        """Return the salt that separates prefix caches, from the tenant's name and the request's salt."""
        if not self.tenant.name and salt is None:
            return ""
        digest = hashlib.sha256()
        for part in (self.tenant.name, salt or ""):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()
