"""The requirements of serving a model, from its config alone: memory, latency, throughput and cost."""
