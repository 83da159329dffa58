"""Metrics of the response cache: what it answered, what that saved, and what it holds."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_HOUR = 3600.0


class WatchedStore(Protocol):
    """A response cache, as far as its metrics read it at each scrape."""

    @property
    def stored_entries(self) -> int:
        """Answers in the store, as last known."""

    @property
    def stored_bytes(self) -> int:
        """Size of the answers in the store, as last known."""

    @property
    def failed_reads(self) -> int:
        """Look-ups that the store did not answer."""

    @property
    def failed_writes(self) -> int:
        """Answers that the store did not take."""


class ResponseFamilies:
    """The counters of all models."""

    def __init__(self, registry: CollectorRegistry, price_per_hour: float | None) -> None:
        """Create and register the counters; ``price_per_hour``: the machine's price."""

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, ["model", *labels], registry=registry)

        self.price = price_per_hour
        self.lookups = counter(
            "galley_response_cache_lookups",
            "Texts and vectors by what the response cache did: hit, semantic (an answer to "
            "another question), shared (with an equal request that runs), miss or bypass",
            "result",
        )
        self.checked = counter(
            "galley_response_cache_checked_hits",
            "Semantic hits that were generated as well: same, or false",
            "result",
        )
        self.off = Gauge(
            "galley_response_cache_semantic_off",
            "1 if semantic hits are turned off because too many of those checked were false",
            ["model"],
            registry=registry,
        )
        self.tokens = counter(
            "galley_response_cache_saved_tokens",
            "Tokens that were not computed because of the response cache",
            "kind",
        )
        self.seconds = counter(
            "galley_response_cache_saved_engine_seconds",
            "Engine time that answers from the store had taken when they were computed",
        )
        self.cost = counter(
            "galley_response_cache_saved_cost",
            "Price of this engine time, where the machine has a price",
        )

    def of(self, model: str) -> "ResponseMetrics":
        """Return the counters of one model."""
        return ResponseMetrics(self, model)


class ResponseMetrics:
    """Counts what the response cache does for one model."""

    def __init__(self, families: ResponseFamilies, model: str) -> None:
        self._families = families
        self._model = model

    def looked_up(self, result: str) -> None:
        """Count a text or vector by "hit", "semantic", "shared", "miss" or "bypass"."""
        self._families.lookups.labels(self._model, result).inc()

    def checked(self, *, same: bool) -> None:
        """Count a semantic hit that was generated as well."""
        self._families.checked.labels(self._model, "same" if same else "false").inc()

    def semantic_off(self, off: bool) -> None:
        """Note whether semantic hits are turned off."""
        self._families.off.labels(self._model).set(off)

    def saved(self, *, prompt: int, generated: int, seconds: float) -> None:
        """Count tokens that were not computed, and the engine time that they would have taken."""
        families = self._families
        families.tokens.labels(self._model, "prompt").inc(prompt)
        families.tokens.labels(self._model, "generated").inc(generated)
        families.seconds.labels(self._model).inc(seconds)
        if families.price is not None:
            families.cost.labels(self._model).inc(seconds * families.price / _HOUR)


class StoreCollector(Collector):
    """Collects what a store holds at each scrape."""

    def __init__(self) -> None:
        """Watch no store yet."""
        self.store: WatchedStore | None = None

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        entries = GaugeMetricFamily("galley_response_cache_entries", "Answers in the store")
        size = GaugeMetricFamily("galley_response_cache_bytes", "Size of the answers in the store")
        failures = CounterMetricFamily(
            "galley_response_cache_failures",
            "Operations that the store did not perform; their requests went on without it",
            labels=["operation"],
        )
        if self.store is not None:
            entries.add_metric([], self.store.stored_entries)
            size.add_metric([], self.store.stored_bytes)
            failures.add_metric(["read"], self.store.failed_reads)
            failures.add_metric(["write"], self.store.failed_writes)
        yield from (entries, size, failures)
