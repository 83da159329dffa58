"""The statistics and the status of an engine, as it reports them after each step."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

EngineState = Literal["starting", "ready", "stalled", "recovering", "failed", "closed"]
"""State of an engine, as its client sees it: whether it accepts requests."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot after a step. Counters only grow; gauges hold the current value.

    It is sent after every step, so the message has no field that is at its default.

    Attributes:
        batch_sequences, batch_tokens: gauges: sequences of the latest step, and rows as the token budget
            counts them.
        prefix_disk_hit_tokens: counter: tokens of prompts whose keys and values were read from disk.
        prefix_disk_dropped_blocks, prefix_disk_damaged_files: counters: blocks that could not be written,
            and files that were not intact.
        prefix_disk_bytes: gauge: bytes of the files in ``prefix_cache_dir``.
        kv_peer_hit_tokens: counter: tokens of prompts whose keys and values came from a peer.
        kv_fetches, kv_fetch_failures, kv_fetch_seconds: counters: transfers from peers, those of them that
            ended before all was there, and the time they took.
        kv_fetched_blocks, kv_fetched_bytes, kv_missing_blocks: counters: what came, and blocks that a peer
            did not have any more.
        kv_sent_blocks, kv_sent_bytes, kv_send_failures: counters: what was sent to peers, and requests of
            theirs that were refused or ended early.
        prompt_proposed_tokens and so on: counters: draft tokens that were verified, by proposer.
        prompt_accepted_tokens and so on: counters: those of them that were accepted.
        busy_seconds: counter: time that was divided among requests; see ``engine/step_meter.py``.
        adapters_loaded: gauge: LoRA adapters loaded or being loaded.
        adapter_names: their names in the API.
        adapter_loads, adapter_evictions: counters: adapters loaded, and adapters evicted to make room.
        expert_cache_bytes: gauge: memory for experts that are on disk.
        expert_hits, expert_misses: counters: experts that a step's rows chose in a layer, by whether they
            were in memory or had to be read.
        expert_evictions, expert_read_bytes, expert_read_seconds: counters: experts evicted to make room for
            those read, and the bytes and time of the reads.
        schedule_seconds, forward_seconds, sample_seconds, emit_seconds: counters: time spent in each part
            of the steps. ``forward_seconds`` includes ``sample_seconds`` and the steps of a draft model.
    """

    running: int = 0
    waiting: int = 0
    kv_used_blocks: int = 0
    kv_cached_blocks: int = 0
    kv_total_blocks: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    encoder_rows: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_disk_hit_tokens: int = 0
    prefix_disk_read_bytes: int = 0
    prefix_disk_written_bytes: int = 0
    prefix_disk_dropped_blocks: int = 0
    prefix_disk_damaged_files: int = 0
    prefix_disk_bytes: int = 0
    kv_peer_hit_tokens: int = 0
    kv_fetches: int = 0
    kv_fetch_failures: int = 0
    kv_fetch_seconds: float = 0.0
    kv_fetched_blocks: int = 0
    kv_fetched_bytes: int = 0
    kv_missing_blocks: int = 0
    kv_sent_blocks: int = 0
    kv_sent_bytes: int = 0
    kv_send_failures: int = 0
    preemptions: int = 0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    schedule_seconds: float = 0.0
    emit_seconds: float = 0.0
    busy_seconds: float = 0.0
    batch_sequences: int = 0
    batch_tokens: int = 0
    prompt_proposed_tokens: int = 0
    prompt_accepted_tokens: int = 0
    recent_proposed_tokens: int = 0
    recent_accepted_tokens: int = 0
    grammar_proposed_tokens: int = 0
    grammar_accepted_tokens: int = 0
    draft_proposed_tokens: int = 0
    draft_accepted_tokens: int = 0
    adapters_loaded: int = 0
    adapter_names: tuple[str, ...] = ()
    adapter_loads: int = 0
    adapter_evictions: int = 0
    expert_cache_bytes: int = 0
    expert_hits: int = 0
    expert_misses: int = 0
    expert_evictions: int = 0
    expert_read_bytes: int = 0
    expert_read_seconds: float = 0.0

    @property
    def kv_usage(self) -> float:
        """The share of the KV blocks in use, 0 to 1; 0 without any."""
        return self.kv_used_blocks / self.kv_total_blocks if self.kv_total_blocks else 0.0

    def without_engine(self) -> "EngineStats":
        """Return the counters of an engine that has ended; nothing runs or is held there any more."""
        return msgspec.structs.replace(
            self,
            running=0,
            waiting=0,
            kv_used_blocks=0,
            kv_cached_blocks=0,
            adapters_loaded=0,
            adapter_names=(),
        )

    @classmethod
    def sum_of(cls, every: Sequence["EngineStats"]) -> "EngineStats":
        """Return the statistics of several engines as those of one.

        Names are put together, and the folder of prefixes, which engines of a machine share, counts once.
        """
        found: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            values = [getattr(stats, name) for stats in every]
            if name == "adapter_names":
                found[name] = tuple(sorted(set().union(*values)))
            elif name == "prefix_disk_bytes":
                found[name] = max(values, default=0)
            else:
                found[name] = sum(values)
        return cls(**found)


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One of the engines that serve a model, as metrics and administrators see it.

    Attributes:
        name: a number, or the address of a remote replica.
        state: whether it accepts requests; "draining": it finishes those that it has.
        stats: the latest statistics of its engine.
        restarts: how often its engine was replaced, or the connection to it.
        killed_starts: how often its engine was killed while it loaded.
        pid: the engine's process id, if one is running on this machine.
        version: digest of the model and of how it is computed; empty before it is known.
        remote: whether it is reached over a network.
        release: the release of the model that it serves; empty without releases.
        stores: whether its engine is still writing files for the next start.
    """

    name: str
    state: EngineState | Literal["draining"]
    stats: EngineStats
    restarts: int
    killed_starts: int = 0
    pid: int | None = None
    version: str = ""
    remote: bool = False
    release: str = ""
    stores: bool = False


class ReleaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One of the releases among which a model's requests are divided.

    Attributes:
        name: its name.
        share: its share of the requests, in percent.
        replicas: the number of its replicas that accept requests.
        requests: unfinished sequences that it has, those that wait for a replica included.
        waiting: sequences that wait for one of its replicas to start.
    """

    name: str
    share: float
    replicas: int
    requests: int
    waiting: int
