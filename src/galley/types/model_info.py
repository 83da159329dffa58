"""What an engine tells of itself and of the model that it runs.

These structs cross the process boundary as msgpack, as those of :mod:`galley.types` do.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from galley.types.audio import SpeechInfo
from galley.types.requests import Task
from galley.types.sampling import SamplingDefaults
from galley.types.sizes import BLOCK_TOKENS, blocks_for

EngineState = Literal["starting", "ready", "stalled", "recovering", "failed", "closed"]
"""Whether an engine takes requests, as its client sees it."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a step. Counters only grow; gauges are as of now.

    Attributes:
        batch_sequences, batch_tokens: gauges: sequences of the latest step, and rows as the token budget
            counts them.
        prompt_proposed_tokens and so on: counters: guesses that were verified, by proposer.
        prompt_accepted_tokens and so on: counters: those of them that were right.
        busy_seconds: counter: time that was divided among requests; see ``engine/step_meter.py``.
        adapters_loaded: gauge: LoRA adapters in memory, or on their way there.
        adapter_loads, adapter_evictions: counters: of these, and of those that made room for others.
        expert_cache_bytes: gauge: memory for experts that are on disk.
        expert_hits, expert_misses: counters: experts that a step's rows chose in a layer, by whether they
            were in memory or had to be read.
        expert_evictions, expert_read_bytes, expert_read_seconds: counters: experts that made room for
            those, and what reading took.
        schedule_seconds, forward_seconds, sample_seconds, emit_seconds: counters: where the time of steps
            went. What ``forward_seconds`` counts includes ``sample_seconds``, and steps of a draft model.
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
    adapter_loads: int = 0
    adapter_evictions: int = 0
    expert_cache_bytes: int = 0
    expert_hits: int = 0
    expert_misses: int = 0
    expert_evictions: int = 0
    expert_read_bytes: int = 0
    expert_read_seconds: float = 0.0


class ExpertCosts(msgspec.Struct, frozen=True):
    """Of a mixture of experts: ``bytes`` of all its experts, of which a row reads the share ``share``."""

    bytes: int = 0
    share: float = 0.0

    def further(self, rows: int) -> int:
        """Bytes that a step of so many rows reads beyond those of one row, if all experts are as likely."""
        return round(self.bytes * (1 - self.share - (1 - self.share) ** rows))


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of a model reads and computes, apart from attention's own arithmetic.

    Attributes:
        weight_bytes: read by a step of one row, in the executor's layout.
        kv_bytes_per_token: keys and values that are read for each token of a sequence's context.
        row_operations: of linear layers for each token; a product and its addition are two.
        logit_operations: the same for each token whose logits are wanted, on top.
        experts: of which further rows read more.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    row_operations: int
    logit_operations: int
    experts: ExpertCosts = ExpertCosts()

    def weights_read(self, rows: int) -> int:
        """Bytes of weights that a step of so many rows reads."""
        return self.weight_bytes + self.experts.further(rows)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes of the memory and how it runs, by arithmetic, before its weights are loaded.

    Attributes:
        family: of the model, such as "llama".
        parameters: numbers in the checkpoint.
        executor, isa, device, threads: what runs it; ``isa`` is empty where there is no choice of kernels.
        quantize, inputs, kv_dtype: types of weights, of what is multiplied with them, and of the KV cache.
        max_model_len: longest context, in tokens.
        step_tokens: token budget of a step, which the buffers are for.
        weights, buffers: bytes of weights, and of all that lies between ops.
        kv_per_token: bytes of keys and values that a token takes.
        kv_tokens, kv: tokens that the KV cache holds, and its bytes.
        state_slots, states: how many states of recurrent layers there is room for, and their bytes.
        reserve: bytes kept for the server, text workers and unread answers.
        adapters: bytes of the slots for LoRA adapters, when all are taken.
        experts: bytes for experts that are on disk; 0: ``weights`` includes all there are.
        experts_on_disk, experts_of_token: bytes of all of them, and of those that a token goes to.
        available: bytes that can still be taken, of the machine, the container or the device.
        requests: (tokens of a request, prompt and output; how many such requests run at a time).
    """

    family: str
    parameters: int
    executor: str
    isa: str
    device: str
    threads: int
    quantize: str
    inputs: str
    kv_dtype: str
    max_model_len: int
    step_tokens: int
    weights: int
    buffers: int
    kv_per_token: int
    kv_tokens: int
    kv: int
    reserve: int
    available: int
    requests: tuple[tuple[int, int], ...] = ()
    adapters: int = 0
    state_slots: int = 0
    states: int = 0
    experts: int = 0
    experts_on_disk: int = 0
    experts_of_token: int = 0

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        held = self.weights + self.experts + self.adapters
        cache = self.kv + self.states
        return held + cache + self.buffers + self.reserve

    @property
    def fits(self) -> bool:
        """Whether as much is available."""
        return self.total <= self.available


OnLedger: TypeAlias = Callable[[Ledger], None]
"""Told what a model will take of the memory, before its weights are loaded."""


class WeightReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a served model's weights are, and what making them so cost.

    Attributes:
        kind: of the matrices, such as "int4 (group 128, BF16 scales)"; several with their shares.
        method: how they were made: "none", "rtn", what the checkpoint says, such as
            "gptq", or "gguf" for a file of integers that does not say.
        calibration: digest of the data that the method saw; empty if it saw none.
        kl, kl99: mean and 99 % KL divergence from unquantised weights, in nats; None: not measured.
        top1: share of positions at which both think the same token the likeliest.
    """

    kind: str
    method: str
    calibration: str = ""
    kl: float | None = None
    kl99: float | None = None
    top1: float | None = None


class EmbeddingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says of the vectors or scores that it makes.

    Attributes:
        pooling: how, such as "mean".
        normalized: vectors have length 1.
        width: numbers of a vector; 1 for scores.
        dimensions: to which a vector may be cut; empty: to any.
        prompts: name -> what is put before a text.
        default_prompt: the name of the one that is put before texts without a name; None: none is.
        pair_types: the second text of a pair has tokens of type 1.
    """

    pooling: str
    normalized: bool
    width: int
    dimensions: tuple[int, ...] = ()
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    pair_types: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a ready engine says of itself.

    Attributes:
        tasks: what the model does; a request for anything else is refused.
        speech: what a model that transcribes says of its audio; None for all others.
        ledger: of the memory; None from an engine that keeps none.
        grammars: whether texts can be made to follow one (``SamplingParams.grammar``).
        adapters: slots for LoRA adapters in memory; 0: the model takes none.
        recurrent: it keeps a state for each sequence, which cannot be forked for a beam search.
        weights: their kinds and what these cost; None from an engine that does not tell.
        embedding: of a model that embeds or reranks; it has no KV cache. None for all others.
    """

    name: str
    path: str
    family: str
    tasks: tuple[Task, ...]
    executor: str
    dtype: str
    quantize: str
    activations: str
    kv_dtype: str
    vocab_size: int
    max_model_len: int
    kv_cache_tokens: int
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    costs: StepCosts
    phases: dict[str, float] = {}
    speech: SpeechInfo | None = None
    ledger: Ledger | None = None
    grammars: bool = False
    weights: WeightReceipt | None = None
    adapters: int = 0
    recurrent: bool = False
    embedding: EmbeddingInfo | None = None

    @property
    def max_request_tokens(self) -> int:
        """The most tokens, prompt plus output, that one request can ever hold beside its audio."""
        return self.max_beam_tokens(1)

    def max_beam_tokens(self, beams: int) -> int:
        """The most tokens of each of so many hypotheses, in the worst case that they share no block."""
        if self.embedding is not None:
            return self.max_model_len
        audio = 0 if self.speech is None else blocks_for(self.speech.max_rows)
        blocks = (self.kv_cache_tokens // BLOCK_TOKENS - audio) // beams
        return min(self.max_model_len, BLOCK_TOKENS * blocks)
