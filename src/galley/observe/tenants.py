"""Metrics by tenant."""

from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge

TokenKind: TypeAlias = Literal["prompt", "cached", "generated"]


class TenantMetrics:
    """What is counted by tenant. The names are those of the key file, so there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, ["tenant", *labels], registry=registry)

        self._requests = counter(
            "galley_tenant_requests", "HTTP requests answered, by tenant and status", "status"
        )
        self._tokens = counter("galley_tenant_tokens", "Tokens of requests, by tenant", "kind")
        self._cost = counter("galley_tenant_cost", "Cost on the receipts of requests, by tenant")
        self._limited = counter(
            "galley_tenant_rate_limited", "Requests that a tenant's limit refused", "limit"
        )
        self._running = Gauge(
            "galley_tenant_requests_running",
            "Requests running, by tenant",
            ["tenant"],
            registry=registry,
        )

    def answered(self, tenant: str, status: int) -> None:
        """An HTTP response to one of the tenant's requests is complete."""
        self._requests.labels(tenant, str(status)).inc()

    def begun(self, tenant: str) -> None:
        """A request of the tenant's begins."""
        self._running.labels(tenant).inc()

    def ended(self, tenant: str, cost: float | None) -> None:
        """It has ended; ``cost``: as on its receipt."""
        self._running.labels(tenant).dec()
        if cost is not None:
            self._cost.labels(tenant).inc(cost)

    def counter(self, tenant: str, kind: TokenKind) -> Counter:
        """Tokens of one kind; those "cached" are among those of the "prompt"."""
        return self._tokens.labels(tenant, kind)

    def limited(self, tenant: str, limit: str) -> None:
        """A limit, of "requests", "tokens" or "concurrency", has refused a request."""
        self._limited.labels(tenant, limit).inc()
