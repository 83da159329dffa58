"""Gauges by vLLM's names, which endpoint pickers of Kubernetes gateways read.

Source: the model server protocol of the Gateway API Inference Extension. The label of a model is
``model_name``, as in vLLM.
"""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from galley.observe.engines import EngineTotals
from galley.types.sizes import BLOCK_TOKENS


class VllmNamesCollector(Collector):
    """Collects the gauges of all engines of a server."""

    def __init__(self, models: Mapping[str, EngineTotals]) -> None:
        """Create the collector; ``models``: model name -> totals of its engines, which may change."""
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        running = _gauge("num_requests_running", "Sequences running")
        waiting = _gauge("num_requests_waiting", "Sequences waiting")
        usage = _gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1")
        cache = _gauge("cache_config_info", "The KV cache", "block_size", "num_gpu_blocks")
        lora = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "LoRA adapters in memory; the value is the time",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        for model, engine in self._models.items():
            stats = engine.engine.stats
            running.add_metric([model], stats.running)
            waiting.add_metric([model], stats.waiting)
            usage.add_metric([model], stats.kv_usage)
            if stats.kv_total_blocks:
                blocks = str(stats.kv_total_blocks)
                cache.add_metric([model, str(BLOCK_TOKENS), blocks], 1)
            info = engine.engine.info
            if info is not None and info.text is not None and info.text.adapters:
                names = ",".join(stats.adapter_names)
                # A request for an adapter in memory runs at once; which ones wait for a place is not known.
                lora.add_metric([str(info.text.adapters), names, ""], time.time())
        yield from (running, waiting, usage, cache, lora)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vllm:{name}", meaning, labels=["model_name", *labels])
