"""Strategies for any valid values of settings."""

from typing import Any

from hypothesis import strategies as st

TEXT = st.text(
    st.characters(min_codepoint=32, exclude_categories=["C", "Z"], exclude_characters=","),
    min_size=1,
    max_size=12,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": TEXT,
    "revision": TEXT,
    "dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
    "weight_dtype": st.sampled_from(["auto", "float32", "bf16", "int8", "int7", "int4"]),
    "activations": st.sampled_from(["auto", "float32", "bfloat16", "int8"]),
    "kv_dtype": st.sampled_from(["auto", "float32", "bfloat16", "int8", "int4"]),
    "experts": st.sampled_from(["memory", "disk"]),
    "expert_cache_bytes": st.none() | st.integers(1, 1 << 40),
    "state_interval": st.integers(1, 1 << 16).map(lambda blocks: 16 * blocks),
    "executor": st.sampled_from(["auto", "cpu", "reference"]),
    "engine": TEXT,
    "engine_options": st.sampled_from(["", "{}", '{"size":3}']),
    "device": TEXT,
    "weight_cache": st.booleans(),
    "quality_gate": st.sampled_from(["", "kl=0.02", "top1=0.97,kl99=1.5"]),
    "quality_gate_against": st.sampled_from(["", "org/name"]),
    "threads": st.none() | st.integers(1, 256),
    "tensor_parallel": st.integers(2, 64),
    "tensor_parallel_rank": st.sampled_from(
        [(), ("10.0.0.8:8600",), ("10.0.0.8:8600", "rank:8600")]
    ),
    "tensor_parallel_cpus": st.lists(st.sampled_from(["0-3", "4+6"]), max_size=2).map(tuple),
    "disable_pass": st.lists(TEXT, max_size=3).map(tuple),
    "sampling_defaults": st.lists(
        st.sampled_from(["temperature=0.5", "top_k=4", "max_tokens=100"]), max_size=2, unique=True
    ).map(tuple),
    "system_prompt": TEXT,
    "max_model_len": st.none() | st.integers(1, 10**6),
    "kv_cache_tokens": st.none() | st.integers(1, 10**9),
    "kv_memory_fraction": st.floats(0.01, 0.95),
    "max_batch_tokens": st.integers(64, 10**5),
    "max_running": st.integers(1, 64),
    "prefix_cache": st.booleans(),
    "prefix_cache_dir": TEXT,
    "prefix_cache_dir_bytes": st.integers(1, 1 << 50),
    "priority_steps": st.integers(1, 10**4),
    "tool_parser": st.sampled_from(["auto", "off", "hermes", "qwen_xml"]),
    "reasoning_parser": st.sampled_from(["auto", "off", "think"]),
    "volatile_lines": st.sampled_from(["keep", "move", "drop"]),
    "batching": st.sampled_from(["continuous", "dynamic", "static"]),
    "batching_delay": st.floats(0, 3600),
    "speculation": st.sampled_from(["auto", "off", "prompt", "recent", "grammar", "draft"]),
    "draft_model": st.none() | TEXT,
    "max_adapters": st.none() | st.integers(1, 1024),
    "adapter_rank": st.integers(1, 1024),
    "adapter": st.lists(
        st.sampled_from(["fr=/adapters/fr", "legal-2=a=b"]), max_size=2, unique=True
    ).map(tuple),
    "host": TEXT,
    "port": st.integers(0, 65535),
    "grpc_port": st.none() | st.integers(0, 65535),
    "served_model_name": TEXT,
    "models_dir": TEXT,
    "model_repository": TEXT,
    "load_on_request": st.booleans(),
    "max_loaded_models": st.integers(1, 100),
    "model_keep_alive": st.floats(-1, 1e6),
    "take_turns": st.booleans(),
    "replicas": st.integers(1, 256),
    "replica": st.lists(st.sampled_from(["10.0.0.7:8500", "[::1]:9000"]), max_size=2).map(tuple),
    "replica_file": TEXT,
    "kv_events": st.sampled_from(["", "tcp://*:5557", "ipc:///run/galley-kv"]),
    "kv_events_topic": st.sampled_from(["", "kv@10.0.0.7@m"]),
    "gateway_headers": st.booleans(),
    "objective": st.lists(st.sampled_from(["chat=-10", "batch=100"]), max_size=2, unique=True).map(
        tuple
    ),
    "role": st.sampled_from(["off", "prefill", "decode", "both"]),
    "kv_transfer": st.sampled_from(["127.0.0.1:0", "[::1]:0", "worker-1.example.com:0"]),
    "kv_transfer_seconds": st.floats(0.01, 3600),
    "kv_hold_seconds": st.floats(0.01, 3600),
    "kv_peer": st.lists(st.sampled_from(["10.0.0.0/8", "::1"]), max_size=2).map(tuple),
    "prefill_replica": st.lists(st.sampled_from(["10.0.0.7:8500"]), max_size=2).map(tuple),
    "prefill_tokens": st.integers(1, 10**6),
    "prefill_seconds": st.floats(0.01, 3600),
    "cluster_token_file": TEXT,
    "cluster_ca": TEXT,
    "cluster_cert": TEXT,
    "cluster_key": TEXT,
    "api_key": st.lists(TEXT, max_size=3).map(tuple),
    "api_key_file": TEXT,
    "admin_key": st.lists(TEXT, max_size=3).map(tuple),
    "metrics_without_key": st.booleans(),
    "speaker_models": TEXT,
    "speaker_encoder": TEXT,
    "speaker_distance": st.floats(0, 2),
    "metrics_vllm_names": st.booleans(),
    "allowed_host": st.lists(TEXT, max_size=3).map(tuple),
    "cors_origin": st.lists(
        st.sampled_from(
            ["*", "https://app.example.com", "http://localhost:3000", "http://[::1]:80"]
        ),
        max_size=3,
    ).map(tuple),
    "tls_cert": TEXT,
    "tls_key": TEXT,
    "audit_log": TEXT,
    "redact": st.lists(st.sampled_from(["all", "card", "name"]), max_size=2, unique=True).map(
        tuple
    ),
    "page": st.booleans(),
    "max_queue": st.integers(0, 10**6),
    "stored_responses": st.integers(0, 10**6),
    "stored_response_bytes": st.integers(1, 1 << 40),
    "stored_response_seconds": st.integers(1, 10**9),
    "stored_responses_at": st.sampled_from(["", "redis://localhost:6379/2"]),
    "max_body_bytes": st.integers(1, 10**9),
    "max_audio_bytes": st.integers(1, 10**12),
    "max_audio_seconds": st.floats(1, 1e6),
    "max_upload_bytes": st.integers(10**12, 10**13),
    "max_live_streams": st.integers(1, 10**6),
    "live_idle_seconds": st.integers(1, 10**6),
    "responses_websocket_seconds": st.integers(1, 10**6),
    "max_connections": st.none() | st.integers(1, 10**6),
    "max_connections_per_address": st.none() | st.integers(1, 10**6),
    "max_header_bytes": st.integers(1024, 10**6),
    "max_headers": st.integers(1, 10**4),
    "max_unfinished_body_bytes": st.integers(1, 10**12),
    "header_timeout": st.floats(0.01, 3600),
    "body_timeout": st.floats(0.01, 3600),
    "min_body_rate": st.integers(1, 10**9),
    "keep_alive_timeout": st.floats(0.01, 3600),
    "send_timeout": st.floats(0.01, 3600),
    "stall_seconds": st.floats(0.01, 3600),
    "request_timeout": st.floats(0.01, 3600),
    "text_seconds": st.floats(0.01, 3600),
    "text_bytes": st.integers(1 << 28, 1 << 40),
    "audio_decode_seconds": st.floats(0.01, 3600),
    "audio_decode_bytes": st.integers(1 << 24, 1 << 40),
    "step_timeout": st.floats(0, 3600),
    "memory_limit_fraction": st.floats(0.01, 1),
    "drain_seconds": st.floats(0, 3600),
    "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
    "log_format": st.sampled_from(["text", "json"]),
    "log_prompts": st.booleans(),
    "price_per_hour": st.none() | st.floats(0, 1e6),
    "record": TEXT,
    "record_texts": TEXT,
    "record_bytes": st.integers(128 << 20, 1 << 40),
    "response_cache": st.sampled_from(["off", "exact", "semantic"]),
    "response_cache_store": st.sampled_from(["", "answers.sqlite", "redis://localhost:6379/1"]),
    "response_cache_bytes": st.integers(1, 1 << 40),
    "response_cache_entries": st.integers(1, 10**9),
    "response_cache_seconds": st.floats(0.001, 1e9),
    "semantic_cache_model": TEXT,
    "semantic_cache_url": TEXT,
    "semantic_cache_api_key": TEXT,
    "semantic_cache_threshold": st.none() | st.floats(0.001, 1),
    "semantic_cache_reranker": TEXT,
    "semantic_cache_reranker_threshold": st.none() | st.floats(-100, 100),
    "semantic_cache_turns": st.integers(1, 10**6),
    "semantic_cache_entries": st.integers(1, 10**9),
    "semantic_cache_checked": st.floats(0, 1),
    "semantic_cache_budget": st.floats(0.001, 0.999),
    "semantic_cache_agreement": st.floats(0.001, 1),
    "response_cache_pace": st.none() | st.floats(0.001, 1e9),
    "otlp_endpoint": st.sampled_from(["", "http://localhost:4318", "https://otel.example.com/x"]),
}


def _events_agree(settings: dict[str, Any], *, several: bool) -> bool:
    if not settings.get("kv_events"):
        return not settings.get("kv_events_topic")
    alone = settings.get("replicas", 1) == 1 and not settings.get("replica") and not several
    return alone and bool(settings.get("prefix_cache", True))


def _ranks_agree(settings: dict[str, Any]) -> bool:
    ranks = settings.get("tensor_parallel", 1)
    if settings.get("tensor_parallel_cpus") and ranks == 1:
        return False
    elsewhere = settings.get("tensor_parallel_rank", ())
    return not elsewhere or (len(elsewhere) < ranks and settings.get("replicas", 1) < 2)


def _roles_agree(settings: dict[str, Any]) -> bool:
    role = settings.get("role", "off")
    if settings.get("prefill_replica") and role not in ("decode", "both"):
        return False
    return bool(role == "off" or settings.get("prefix_cache", True))


def _agrees(settings: dict[str, Any]) -> bool:
    """Return whether settings only for draft models, experts on disk or a gate come with these."""
    if settings.get("quality_gate_against") and not settings.get("quality_gate"):
        return False
    if settings.get("objective") and not settings.get("gateway_headers"):
        return False
    if not _roles_agree(settings):
        return False
    several = settings.get("models_dir") or settings.get("model_repository")
    if not _events_agree(settings, several=bool(several)):
        return False
    if settings.get("replicas", 1) > 1 and settings.get("take_turns", True) and several:
        return False
    if not _ranks_agree(settings):
        return False
    on_disk = settings.get("experts") == "disk"
    if on_disk and not settings.get("weight_cache", True):
        return False
    if settings.get("record_texts") and not settings.get("record"):
        return False
    if settings.get("prefix_cache_dir") and not settings.get("prefix_cache", True):
        return False
    if not on_disk and settings.get("expert_cache_bytes") is not None:
        return False
    speculation = settings.get("speculation", "auto")
    if settings.get("draft_model") is None:
        return bool(speculation != "draft")
    return speculation in ("auto", "draft")


def _with_listed_replicas(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with those that a file of replicas needs, if they have one."""
    if not settings.get("replica_file"):
        return settings
    others = (
        "replica",
        "prefill_replica",
        "response_cache",
        "response_cache_store",
        "kv_events",
        "kv_events_topic",
    )
    return {name: v for name, v in settings.items() if name not in others} | {"replicas": 0}


SOME_SETTINGS = (
    st.fixed_dictionaries({}, optional=VALUES).map(_with_listed_replicas).filter(_agrees)
)
