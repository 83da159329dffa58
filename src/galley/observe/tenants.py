"""Metrics per tenant."""

from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge

from galley.observe.tally import Sum, SumFamily

TokenKind: TypeAlias = Literal["prompt", "cached", "generated"]


class TenantMetrics:
    """The metrics of each tenant. Tenant names come from the key file, so there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, ["tenant", *labels], registry=registry)

        self._requests = counter(
            "galley_tenant_requests", "HTTP requests answered, by tenant and status", "status"
        )
        self._tokens = SumFamily(
            "galley_tenant_tokens", "Tokens of requests, by tenant", ["tenant", "kind"]
        )
        registry.register(self._tokens)
        self._cost = counter("galley_tenant_cost", "Cost on the receipts of requests, by tenant")
        self._limited = counter(
            "galley_tenant_rate_limited", "Requests rejected by a tenant's limit", "limit"
        )
        self._running = Gauge(
            "galley_tenant_requests_running",
            "Requests running, by tenant",
            ["tenant"],
            registry=registry,
        )

    def answered(self, tenant: str, status: int) -> None:
        """Count a completed HTTP response to one of the tenant's requests."""
        self._requests.labels(tenant, str(status)).inc()

    def begun(self, tenant: str) -> None:
        """Count a request of the tenant that begins."""
        self._running.labels(tenant).inc()

    def ended(self, tenant: str) -> None:
        """Count the end of a request of the tenant."""
        self._running.labels(tenant).dec()

    def cost(self, tenant: str) -> Counter:
        """Return the counter of the costs on receipts."""
        return self._cost.labels(tenant)

    def counter(self, tenant: str, kind: TokenKind) -> Sum:
        """Return the counter of one kind of token; "cached" tokens are also counted as "prompt"."""
        return self._tokens.labels(tenant, kind)

    def limited(self, tenant: str, limit: str) -> Counter:
        """Return the counter of requests refused by a limit of "requests", "tokens" or "concurrency"."""
        return self._limited.labels(tenant, limit)
