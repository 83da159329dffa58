"""The settings of an engine; see :mod:`galley.settings.config` for where they come from."""

# ruff: noqa: RUF009  (setting is dataclasses.field, called the same way)

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from galley.errors import SettingsError
from galley.settings.engine_checks import check_engine
from galley.settings.engine_choice import engine_of
from galley.settings.fields import check_values, respell, setting
from galley.settings.values import Count, SecondsOrZero
from galley.types import BLOCK_TOKENS, SamplingDefaults, SamplingParams
from galley.types.weight_dtypes import ACTIVATION_SPELLINGS, SPELLINGS, WeightDtypeName

Options = TypeVar("Options", bound=msgspec.Struct)

DType = Literal["auto", "float32", "bfloat16"]
ExecutorName = Literal["auto", "cpu", "gpu", "reference"]
WeightDType = Literal["auto", WeightDtypeName]
Activations = Literal["auto", "float32", "bfloat16", "int8"]
KVType = Literal["auto", "float32", "bfloat16", "int8", "int4"]
ToolParser = Literal[
    "auto",
    "off",
    "harmony",
    "deepseek",
    "mistral",
    "qwen_xml",
    "phi",
    "granite",
    "hermes",
    "pythonic",
    "llama",
]
ReasoningParser = Literal["auto", "off", "think", "mistral", "granite"]
VolatileLines = Literal["keep", "move", "drop"]
Experts = Literal["memory", "disk"]
Batching = Literal["continuous", "dynamic", "static"]
Speculation = Literal["auto", "off", "prompt", "recent", "grammar", "draft"]

_DRAFT_ROWS = 32
"""Maximum rows of a step with few running sequences, draft tokens included."""

MOST_THREADS = 1024

MOST_RANKS = 64

MOST_ADAPTERS = 1024

DEFAULT_ADAPTERS = 16

MOST_ADAPTER_RANK = 1024


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of one engine, in the server's process and in the engine's. Sizes are in tokens."""

    model: str = setting(
        "",
        "Model",
        "folder, GGUF or ONNX file, hub id, short name or bundled model (galley-demo, galley-demo-embed, "
        "galley-demo-speech)",
        common=True,
    )
    revision: str = setting("main", "Model", "branch, tag or commit of a hub id")
    dtype: DType = setting(
        "auto",
        "Model",
        "default type for weight_dtype, kv_dtype and activations if these are auto; auto: the type of the "
        "checkpoint's matrices",
        spellings=ACTIVATION_SPELLINGS,
    )
    weight_dtype: WeightDType = setting(
        "auto",
        "Model",
        "type of the weights; auto: dtype, but f16 if dtype is auto and the checkpoint's matrices are "
        "float16",
        alias="quantize",
        spellings=SPELLINGS,
        common=True,
    )
    activations: Activations = setting(
        "auto",
        "Model",
        "input type of linear layers; auto: int8 for integer weights and bfloat16 for bf16 weights, the "
        "latter with AMX or AVX-512 BF16 (executor cpu), else float32; dtype (executor reference); "
        "the type of the weights, or bfloat16 for quantized ones (executor gpu)",
        spellings=ACTIVATION_SPELLINGS,
    )
    kv_dtype: KVType = setting(
        "auto",
        "Model",
        "type of the KV cache (executor reference: dtype, or rounded to int8 or int4); auto: dtype, "
        "but bfloat16 if weights are quantized and no setting is float32, and int8 if a speech model's "
        "weights are integers (executor cpu), or if the checkpoint specifies 8-bit keys and values",
        spellings=ACTIVATION_SPELLINGS,
    )
    engine: str = setting(
        "auto",
        "Model",
        "engine that runs the model: native, onnx, xgboost, lightgbm, sklearn, openvino, llama.cpp, "
        "ctranslate2, onnxruntime-genai, vllm, tensorrt-llm, or one that an installed package adds; auto: "
        "by the suffix of the file, or of one in a folder without other weights",
        common=True,
    )
    engine_options: str = setting(
        "",
        "Model",
        "options that an engine other than native reads, as a JSON object; in YAML a mapping",
    )
    executor: ExecutorName = setting(
        "auto",
        "Model",
        "implementation that runs the model; auto: cpu on device cpu; gpu on cuda, or reference where "
        "triton or kernels for the model are missing",
        common=True,
    )
    device: str = setting(
        "cpu",
        "Model",
        "device that runs the model: cpu, cuda or cuda:1; with tensor_parallel a GPU for each rank: cuda "
        "(the first ones), or a list such as cuda:2,cuda:3",
        common=True,
    )
    weight_cache: bool = setting(
        True,
        "Model",
        "keep packed weights (executor cpu) and optimized graphs (engine onnx) on disk for the next start",
    )
    experts: Experts = setting(
        "memory",
        "Model",
        "where the experts of a mixture of experts are kept; disk: in the file of packed weights, "
        "from which a step reads those that it needs, with a cache of the most recently used "
        "(executor cpu)",
    )
    expert_cache_bytes: Count | None = setting(
        None,
        "Model",
        "bytes of the cache for experts on disk; default: half of what weights and buffers leave",
    )
    quality_gate: str = setting(
        "",
        "Model",
        "refuse a quantized model that loses more than this compared with the checkpoint's own weights: "
        "kl=0.02,top1=0.97 (kl, kl99: mean and 99 % KL divergence in nats; top1: same likeliest token)",
    )
    quality_gate_against: str = setting(
        "",
        "Model",
        "folder or hub id of the original to compare with in the quality gate, if the checkpoint itself is "
        "quantized; default: the checkpoint's own weights",
    )
    threads: Annotated[int, Meta(ge=1, le=MOST_THREADS)] | None = setting(
        None,
        "Model",
        "compute threads (with tensor_parallel, of each rank); default: the cores this process may use, "
        "divided among the ranks",
        common=True,
    )
    tensor_parallel: Annotated[int, Meta(ge=1, le=MOST_RANKS)] = setting(
        1,
        "Model",
        "processes (ranks) that compute the model together, each with a part of every layer and of the KV "
        "cache; texts do not change",
    )
    tensor_parallel_rank: tuple[str, ...] = setting(
        (),
        "Model",
        "HOST:PORT of a rank on another machine (galley rank); repeat for several, which are the last of "
        "tensor_parallel; needs cluster_token_file",
    )
    tensor_parallel_cpus: tuple[str, ...] = setting(
        (),
        "Model",
        "CPUs of a rank, such as 0-7+16; repeat for each rank of this machine; default: those of its NUMA "
        "nodes if the machine has as many nodes or a multiple, else all",
    )
    disable_pass: tuple[str, ...] = setting(
        (), "Model", "graph pass to skip; repeat for several (see galley graph)"
    )
    tool_parser: ToolParser = setting(
        "auto", "Model", "format of the model's tool calls; auto: from its chat template"
    )
    reasoning_parser: ReasoningParser = setting(
        "auto",
        "Model",
        "format of the model's thinking; auto: from its chat template; off: part of the text",
    )
    sampling_defaults: tuple[str, ...] = setting(
        (),
        "Model",
        "default sampling parameters of requests, instead of those in generation_config.json: "
        "NAME=VALUE, of temperature, top_p, top_k, min_p, repetition_penalty and max_tokens; "
        "repeat for several; in YAML a mapping",
    )
    system_prompt: str = setting("", "Model", "system message of conversations without one")
    volatile_lines: VolatileLines = setting(
        "keep",
        "Model",
        "lines of system prompts that clients change with every request (Claude Code's "
        "x-anthropic-billing-header), which prevents prefix caching: keep them, move them to the "
        "end of the conversation, or drop them",
    )
    max_model_len: Count | None = setting(
        None, "Engine", "context limit in tokens; default: the model's own", common=True
    )
    kv_cache_tokens: Count | None = setting(
        None, "Engine", "size of the KV cache in tokens; default: from the memory available"
    )
    kv_memory_fraction: Annotated[float, Meta(gt=0, le=0.95)] = setting(
        0.5, "Engine", "share of the available memory for the KV cache", common=True
    )
    max_batch_tokens: Count = setting(512, "Engine", "token budget of one engine step")
    max_running: Count | None = setting(
        None,
        "Engine",
        "maximum number of running sequences; default: 64, or max_batch_tokens if less",
        common=True,
    )
    prefix_cache: bool = setting(True, "Engine", "reuse the KV blocks of equal prefixes")
    prefix_cache_dir: str = setting(
        "",
        "Engine",
        "folder for KV blocks, which a restarted engine or another one of the same model reads instead of "
        "computing them (executors cpu and reference)",
    )
    prefix_cache_dir_bytes: Count = setting(
        10 << 30,
        "Engine",
        "bytes that the files in prefix_cache_dir may take, over all models; the files used longest ago "
        "are removed",
    )
    state_interval: Annotated[int, Meta(ge=BLOCK_TOKENS, multiple_of=BLOCK_TOKENS)] = setting(
        128,
        "Engine",
        "interval in tokens at which a recurrent model's state is kept for requests with the same "
        "prefix; a multiple of 16",
    )
    priority_steps: Count = setting(
        256, "Engine", "engine steps of waiting that compensate for one level of priority"
    )

    batching: Batching = setting(
        "continuous",
        "Engine",
        "when waiting sequences start: continuous, in any step; dynamic, all of them once none runs; "
        "static, like dynamic, but max_running at a time",
    )
    batching_delay: SecondsOrZero = setting(
        1.0, "Engine", "seconds for which a static batch waits to fill"
    )
    speculation: Speculation = setting(
        "auto",
        "Engine",
        "sources of draft tokens, which are verified when that is faster and never change the text: prompt "
        "(prompt and output so far), recent (recent outputs of the same tenant), grammar (tokens that it "
        "forces), draft (the draft model), auto (all of these), off",
    )
    draft_model: str | None = setting(
        None,
        "Engine",
        "smaller model with the same vocabulary that drafts tokens (galley-demo-draft for "
        "galley-demo), run with the same settings",
        common=True,
    )

    max_adapters: Annotated[int, Meta(ge=0, le=MOST_ADAPTERS)] | None = setting(
        None,
        "Engine",
        "maximum number of LoRA adapters in memory; others are loaded when requested; 0: no adapters; "
        "default: 16 if any adapter is given, else 0",
    )
    adapter_rank: Annotated[int, Meta(ge=1, le=MOST_ADAPTER_RANK)] = setting(
        16, "Engine", "maximum rank of a LoRA adapter"
    )

    cluster_token_file: str = setting(
        "",
        "Cluster",
        "file with the secret by which servers, replicas and ranks on other machines recognize each other",
    )
    cluster_ca: str = setting(
        "",
        "Cluster",
        "certificate authority in PEM of all machines' certificates; encrypts the connections between them",
    )
    cluster_cert: str = setting("", "Cluster", "this machine's certificate in PEM, for cluster_ca")
    cluster_key: str = setting("", "Cluster", "private key of cluster_cert in PEM, unencrypted")

    def __post_init__(self) -> None:
        respell(self)
        check_values(self)
        check_engine(self)

    @property
    def ranks_here(self) -> int:
        """How many of the ranks are on this machine."""
        return self.tensor_parallel - len(self.tensor_parallel_rank)

    def devices_of(self, ranks: int, *, apart: bool) -> tuple[str, ...]:
        """Return the device of each of this many ranks; ``apart``: "cuda" is a GPU for each."""
        names = tuple(self.device.split(","))
        if len(names) > 1:
            return names
        if apart and self.device == "cuda":
            return tuple(f"cuda:{rank}" for rank in range(ranks))
        return names * ranks

    @property
    def engine_name(self) -> str:
        """Name of the engine: ``engine``, or the one that serves such a model."""
        return engine_of(self.model) if self.engine == "auto" else self.engine

    def options_as(self, kind: type[Options]) -> Options:
        """Return ``engine_options`` as an engine's own struct, with its defaults for fields left out.

        Args:
            kind: the struct; with ``forbid_unknown_fields`` it refuses names that it does not have.

        Raises:
            SettingsError: a name or a value does not fit the struct.
        """
        try:
            return msgspec.json.decode(self.engine_options or "{}", type=kind)
        except msgspec.DecodeError as error:
            raise SettingsError(f"engine_options of engine {self.engine_name!r}: {error}") from None

    def with_own(self, defaults: SamplingDefaults) -> SamplingDefaults:
        """Return a checkpoint's default sampling, overridden by ``sampling_defaults``.

        Raises:
            SettingsError: an entry is not of the form NAME=VALUE, or its value is out of range.
        """
        own: dict[str, float] = {}
        for entry in self.sampling_defaults:
            name, equals, text = entry.partition("=")
            name = name.strip()
            if not equals or name not in SamplingDefaults.__struct_fields__:
                names = ", ".join(SamplingDefaults.__struct_fields__)
                raise SettingsError(
                    f"sampling_defaults: {entry!r} is not NAME=VALUE with one of {names}"
                )
            try:
                own[name] = int(text) if name in ("top_k", "max_tokens") else float(text)
                SamplingParams(**{name: own[name]})  # type: ignore[arg-type]
            except ValueError as error:
                raise SettingsError(f"sampling_defaults: {entry!r}: {error}") from None
        if own.get("max_tokens") == 0:
            raise SettingsError("sampling_defaults: max_tokens must be at least 1, got 0")
        return msgspec.structs.replace(defaults, **own)

    @property
    def running_limit(self) -> int:
        """Return ``max_running``, or its default."""
        return self.max_running or min(64, self.max_batch_tokens)

    @property
    def adapter_slots(self) -> int:
        """Return ``max_adapters``, or its default."""
        return self.max_adapters or 0

    @property
    def logit_rows(self) -> int:
        """Rows of a step whose logits are sampled, draft tokens included, unless logprobs are requested."""
        if self.speculation == "off":
            return self.running_limit
        return max(self.running_limit, min(_DRAFT_ROWS, self.max_batch_tokens))


def changed_settings(settings: EngineSettings) -> dict[str, Any]:
    """Return the engine's settings that differ from their defaults, as a file has them."""
    return {
        declared.name: list(value) if isinstance(value, tuple) else value
        for declared in fields(EngineSettings)
        if (value := getattr(settings, declared.name)) != declared.default
    }
