"""Names of the counters that engines report."""

from typing import Final

COUNTERS: Final = {
    "steps": ("galley_engine_steps", "Engine steps"),
    "prefill_tokens": ("galley_prefill_tokens", "Prompt tokens computed, recomputed ones included"),
    "decode_tokens": ("galley_decode_tokens", "Output tokens fed back through the model"),
    "encoder_rows": (
        "galley_encoder_rows",
        "Encoder rows of audio computed, 50 per second for Whisper",
    ),
    "prefix_query_tokens": (
        "galley_prefix_cache_query_tokens",
        "Prompt tokens looked up in the prefix cache",
    ),
    "prefix_hit_tokens": (
        "galley_prefix_cache_hit_tokens",
        "Prompt tokens found in the prefix cache",
    ),
    "prefix_disk_hit_tokens": (
        "galley_prefix_disk_hit_tokens",
        "Prompt tokens whose keys and values were read from disk",
    ),
    "prefix_disk_read_bytes": (
        "galley_prefix_disk_read_bytes",
        "Bytes of keys and values read from disk",
    ),
    "prefix_disk_written_bytes": (
        "galley_prefix_disk_written_bytes",
        "Bytes of keys and values written to disk",
    ),
    "prefix_disk_dropped_blocks": (
        "galley_prefix_disk_dropped_blocks",
        "KV blocks that were not written because the disk was too slow, full or failing",
    ),
    "prefix_disk_damaged_files": (
        "galley_prefix_disk_damaged_files",
        "Files of KV blocks that were not intact; the blocks were computed",
    ),
    "kv_peer_hit_tokens": (
        "galley_kv_transfer_hit_tokens",
        "Prompt tokens whose keys and values came from another server",
    ),
    "kv_fetches": ("galley_kv_transfer_fetches", "Transfers of KV blocks from other servers"),
    "kv_fetch_failures": (
        "galley_kv_transfer_fetch_failures",
        "Transfers that ended before all KV blocks were there; the rest was computed",
    ),
    "kv_fetch_seconds": (
        "galley_kv_transfer_fetch_seconds",
        "Time that transfers from other servers took, added up",
    ),
    "kv_fetched_blocks": (
        "galley_kv_transfer_fetched_blocks",
        "KV blocks fetched from other servers",
    ),
    "kv_fetched_bytes": (
        "galley_kv_transfer_fetched_bytes",
        "Bytes of keys and values fetched from other servers",
    ),
    "kv_missing_blocks": (
        "galley_kv_transfer_missing_blocks",
        "KV blocks that another server did not have any more",
    ),
    "kv_sent_blocks": ("galley_kv_transfer_sent_blocks", "KV blocks sent to other servers"),
    "kv_sent_bytes": ("galley_kv_transfer_sent_bytes", "Bytes of KV blocks sent to other servers"),
    "kv_send_failures": (
        "galley_kv_transfer_send_failures",
        "Requests of other servers for KV blocks that were refused or ended early",
    ),
    "preemptions": (
        "galley_preemptions",
        "Sequences preempted because KV blocks ran out",
    ),
    "adapter_loads": ("galley_adapter_loads", "LoRA adapters loaded into memory"),
    "adapter_evictions": (
        "galley_adapter_evictions",
        "LoRA adapters evicted from memory",
    ),
    "expert_hits": (
        "galley_expert_cache_hits",
        "Experts chosen by a step in a layer that were in memory",
    ),
    "expert_misses": (
        "galley_expert_cache_misses",
        "Experts chosen by a step in a layer that were read from disk",
    ),
    "expert_evictions": ("galley_expert_cache_evictions", "Experts evicted from memory"),
    "expert_read_bytes": (
        "galley_expert_cache_read_bytes",
        "Bytes of experts read from disk",
    ),
    "expert_read_seconds": (
        "galley_expert_cache_read_seconds",
        "Time that steps spent reading experts",
    ),
    "busy_seconds": (
        "galley_engine_busy_seconds",
        "Time in which the engine had work, divided among requests",
    ),
}
"""Counter fields of EngineStats -> metric name (without ``_total``) and help."""
