"""Information that an engine reports about itself and the model it runs.

These structs cross the process boundary as msgpack, as those of :mod:`galley.types` do.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from galley.errors import RequestError
from galley.types.audio import SpeechInfo
from galley.types.requests import Task
from galley.types.sampling import SamplingDefaults
from galley.types.sizes import BLOCK_TOKENS, blocks_for
from galley.types.tensors import TensorSpec
from galley.types.transfers import KVPeer, Role

CACHE_SALT: Final = "cache_salt"
"""The API's parameter that separates cached prefixes."""


class ExpertCosts(msgspec.Struct, frozen=True):
    """Costs of a mixture of experts: ``bytes`` of all its experts, of which a row reads ``share``."""

    bytes: int = 0
    share: float = 0.0

    def further(self, rows: int) -> int:
        """Return the bytes read beyond those of one row by ``rows`` rows, all experts equally likely."""
        return round(self.bytes * (1 - self.share - (1 - self.share) ** rows))


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a step of a model reads and its operations, attention's own arithmetic excluded.

    Attributes:
        weight_bytes: bytes of weights that a step of one row reads, in the executor's layout.
        kv_bytes_per_token: bytes of keys and values read for each token of a sequence's context.
        row_operations: operations of linear layers for each token; a multiply-add counts as two.
        logit_operations: additional operations for each token whose logits are requested.
        experts: costs of the experts, of which further rows read more.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    row_operations: int
    logit_operations: int
    experts: ExpertCosts = ExpertCosts()

    def weights_read(self, rows: int) -> int:
        """Return the bytes of weights that a step of ``rows`` rows reads."""
        return self.weight_bytes + self.experts.further(rows)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A model's memory use and how it runs, computed before its weights are loaded.

    For tensor models, weights and buffers are measured when they have been loaded and tried,
    ``step_tokens`` are rows, and what only texts have is 0.

    Attributes:
        family: the model's family, such as "llama".
        parameters: number of values in the checkpoint.
        ranks: processes that compute the model together; all bytes are those of all of them, and
            ``threads`` those of each.
        executor, isa, device, threads: what runs it; ``isa`` is empty where there is no choice of kernels.
        weight_dtype, inputs, kv_dtype: types of weights, of the inputs multiplied by them, and of the
            KV cache.
        static_inputs: number of matrices whose inputs are rounded by the checkpoint's static scales.
        max_model_len: longest context, in tokens.
        step_tokens: token budget of a step, for which the buffers are sized.
        weights, buffers: bytes of weights, and of all buffers between ops.
        kv_per_token: bytes of a token's keys and values.
        kv_tokens, kv: capacity of the KV cache in tokens, and its bytes.
        state_slots, states: number of states of recurrent layers that fit, and their bytes.
        reserve: bytes kept for the server, text workers and unread answers.
        adapters: bytes of the slots for LoRA adapters, when all are taken.
        experts: bytes of the memory for experts that are on disk; 0: ``weights`` includes all experts.
        experts_on_disk, experts_of_token: bytes of all experts on disk, and of those a token is routed to.
        available: bytes still available on the machine, in the container or on the device.
        requests: (tokens of a request, prompt and output; how many such requests run at a time).
    """

    family: str
    parameters: int
    executor: str
    isa: str
    device: str
    threads: int
    weight_dtype: str
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
    static_inputs: int = 0
    ranks: int = 1

    @property
    def total(self) -> int:
        """Total bytes of all parts."""
        held = self.weights + self.experts + self.adapters
        cache = self.kv + self.states
        return held + cache + self.buffers + self.reserve

    @property
    def fits(self) -> bool:
        """Whether the total fits in the available memory."""
        return self.total <= self.available


OnLedger: TypeAlias = Callable[[Ledger], None]
"""Called with a model's memory ledger before its weights are loaded."""

OnReleaseFinished: TypeAlias = Callable[[str, str, int, float, float], None]
"""Called with a release, and of a sequence that it has finished: the finish reason, the number of tokens,
and the seconds from its submission to the first token and to the end."""


class WeightReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The weight types of a served model, how they were made, and the measured loss of quality.

    Attributes:
        kind: type of the matrices, such as "int4 (group 128, BF16 scales)"; several with their shares.
        method: how they were made: "none", "rtn", the method that the checkpoint names, such as
            "gptq", or "gguf" for a file of integers that names none.
        calibration: digest of the data that the method used; empty if it used none.
        kl, kl99: mean and 99 % KL divergence from unquantized weights, in nats; None: not measured.
        top1: share of positions at which both models rank the same token first.
    """

    kind: str
    method: str
    calibration: str = ""
    kl: float | None = None
    kl99: float | None = None
    top1: float | None = None


class ProgramInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The number formats in which an executor of Galley computes a model, and the costs of a step.

    Attributes:
        dtype, activations: types of the buffers between ops, and of the inputs multiplied by weights.
        weight_dtype, kv_dtype: types of the weights and of the KV cache.
        costs: data and operations of a step.
    """

    dtype: str
    weight_dtype: str
    activations: str
    kv_dtype: str
    costs: StepCosts


class TextInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a model whose requests are token ids. All but the first two are for generating them.

    Attributes:
        vocab_size: number of token ids that a request may have.
        max_model_len: the most tokens of a request, its output included.
        kv_cache_tokens: capacity of the KV cache; 0: the model keeps none.
        eos_token_ids: tokens that end a text.
        defaults: sampling parameters of requests that do not set them.
        grammars: whether texts can be constrained by a grammar (``SamplingParams.grammar``).
        adapters: slots for LoRA adapters in memory; 0: the model takes none.
        recurrent: whether it keeps a state for each sequence, which cannot be forked for a beam search.
        unsupported: parameters of :class:`~galley.types.sampling.SamplingParams` that requests may not set,
            because the runtime does not honor them; and :data:`CACHE_SALT`, if all requests share cached
            prefixes.
    """

    vocab_size: int
    max_model_len: int
    kv_cache_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    defaults: SamplingDefaults = SamplingDefaults()
    grammars: bool = False
    adapters: int = 0
    recurrent: bool = False
    unsupported: tuple[str, ...] = ()


class VectorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the vectors or scores that a model produces.

    Attributes:
        pooling: method of pooling, such as "mean".
        normalized: whether vectors have length 1.
        width: number of elements of a vector; 1 for scores.
        dimensions: lengths to which a vector may be cut; empty: any.
        prompts: name -> prefix that is put before a text.
        default_prompt: name of the prompt used for texts that name none; None: no prompt is used.
        pair_types: whether the second text of a pair has tokens of type 1.
    """

    pooling: str
    normalized: bool
    width: int
    dimensions: tuple[int, ...] = ()
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    pair_types: bool = False


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and outputs of a tensor model.

    Attributes:
        inputs, outputs: what a request has to have and may request. Shapes include the batch axis.
        batched: whether the first axis of every input and output is a batch, whose rows do not depend on
            each other. Otherwise requests are computed one by one.
        max_batch_size: the most rows of a request, if it is batched; 0: no limit.
        platform: the runtime and format, as in the Open Inference Protocol's metadata, such as
            "onnxruntime_onnx".
        priority_levels: levels of priority that requests may have, from 1; 0: any.
        default_priority: level of requests without one of these.
        timeout: seconds within which a request has to be answered; 0: the model sets no limit.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool = False
    max_batch_size: int = 0
    platform: str = ""
    priority_levels: int = 0
    default_priority: int = 0
    timeout: float = 0.0

    def priority(self, given: int) -> int:
        """Return the priority of a request; ``given`` is the one it asks for, or 0 for none."""
        if self.priority_levels and not 1 <= given <= self.priority_levels:
            return self.default_priority
        return given


class VoiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a model that speaks.

    Attributes:
        sample_rate: samples per second of its audio.
        voices: names of its voices, at least one; the first is the default.
        aliases: further names -> voice.
        languages: languages that it speaks, as BCP 47 tags; the first is the default.
        voice_languages: voice -> its language, of a model whose voices speak several.
        streams: whether the first audio of a text does not wait for the last.
        mixes: whether it mixes voices, see :mod:`galley.tts.mixes`.
    """

    sample_rate: int
    voices: tuple[str, ...]
    aliases: dict[str, str] = {}
    languages: tuple[str, ...] = ()
    voice_languages: dict[str, str] = {}
    streams: bool = False
    mixes: bool = False

    @property
    def language(self) -> str:
        """The default language; empty if none is known."""
        return self.languages[0] if self.languages else ""


class TransferInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine exchanges keys and values with others.

    Attributes:
        role: whether it offers its blocks, fetches those of others, or both.
        host, port: where it offers them; port 0: it does not.
    """

    role: Role
    host: str
    port: int

    def at(self, tokens: int) -> KVPeer | None:
        """Return where the full blocks of this many tokens can be fetched; None: they are not offered."""
        whole = tokens // BLOCK_TOKENS * BLOCK_TOKENS
        return KVPeer(self.host, self.port, whole) if self.port else None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that a ready engine reports: those of every model, and parts that only some models have.

    Attributes:
        name, path: name for display, and the file or folder that was loaded.
        family: type of the model, such as "llama".
        tasks: tasks that the model performs; a request for any other is refused.
        executor: what runs it.
        phases: start-up phase -> its seconds.
        ledger: ledger of the memory; None from an engine that keeps none.
        weights: types of the weights and their measured loss; None from an engine that reports none.
        program: how an executor of Galley computes it; None if another runtime does.
        text: vocabulary and limits of a model whose requests are token ids.
        speech: input format and special tokens of a model that transcribes, which has ``text``, too.
        vectors: properties of a model that embeds or reranks texts, which has ``text``, too.
        tensors: inputs and outputs of a tensor model.
        voice: voices and sample rate of a model that speaks.
        transfers: how the engine exchanges keys and values with others; None: it does not.
    """

    name: str
    path: str
    family: str
    tasks: tuple[Task, ...]
    executor: str
    phases: dict[str, float] = {}
    ledger: Ledger | None = None
    weights: WeightReceipt | None = None
    program: ProgramInfo | None = None
    text: TextInfo | None = None
    speech: SpeechInfo | None = None
    vectors: VectorInfo | None = None
    tensors: TensorInfo | None = None
    voice: VoiceInfo | None = None
    transfers: TransferInfo | None = None

    def require_text(self) -> TextInfo:
        """Return ``text``. Raises RequestError if the model has none."""
        if self.text is None:
            raise RequestError(
                f"{self.name} does not work with text; it can {', '.join(self.tasks)}",
                param="model",
            )
        return self.text

    def require_tensors(self) -> TensorInfo:
        """Return ``tensors`` of a model that predicts."""
        assert self.tensors is not None, f"{self.name} does not predict"
        return self.tensors

    def require_program(self) -> ProgramInfo:
        """Return ``program`` of a model that an executor of Galley computes."""
        assert self.program is not None, f"{self.name} is computed by {self.executor}"
        return self.program

    @property
    def max_request_tokens(self) -> int:
        """Maximum tokens, prompt plus output, that one request can hold in addition to its audio."""
        return self.max_beam_tokens(1)

    def max_beam_tokens(self, beams: int) -> int:
        """Return the maximum tokens of each of ``beams`` hypotheses if they share no block (worst case)."""
        text = self.require_text()
        if not text.kv_cache_tokens:
            return text.max_model_len
        audio = 0 if self.speech is None else blocks_for(self.speech.max_rows)
        blocks = (text.kv_cache_tokens // BLOCK_TOKENS - audio) // beams
        return min(text.max_model_len, BLOCK_TOKENS * blocks)
