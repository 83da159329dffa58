"""Gauges by vLLM's names, as an endpoint picker reads them."""

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from galley.observe.metrics import Metrics
from tests.adapters.peft import make_adapter
from tests.server.serving import Server


def test_they_are_there_if_wanted(model: Path, tmp_path: Path) -> None:
    assert "vllm:" not in Metrics().render().decode()
    make_adapter(tmp_path / "a", model, seed=1, size=0.1)
    with Server(
        model,
        tmp_path / "log",
        metrics_vllm_names=True,
        adapter=f"legal={tmp_path / 'a'}",
        max_adapters=2,
        kv_cache_tokens=4096,
        threads=1,
    ) as server:
        ask = {"model": "tiny:legal", "prompt": "the cat", "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/completions", json=ask).status_code == 200
        own = server.metrics()
        page = httpx.get(f"{server.url}/metrics").text
    found = {
        sample.name: sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }
    assert len(found) == 5
    lora = found.pop("vllm:lora_requests_info")
    assert lora.labels["max_lora"] == "2"
    assert lora.labels["running_lora_adapters"] == "legal"
    assert lora.value > 1.7e9
    cache = found.pop("vllm:cache_config_info")
    blocks = sum(value for name, value in own.items() if name.startswith("galley_kv_blocks"))
    assert (cache.labels["block_size"], float(cache.labels["num_gpu_blocks"])) == ("16", blocks)
    assert all(sample.labels == {"model_name": "tiny"} for sample in found.values())
    assert found["vllm:num_requests_running"].value == 0
    assert 0 <= found["vllm:kv_cache_usage_perc"].value < 1
