"""What serving a model takes, from its config alone: memory, latency, throughput and cost."""
