"""The differences between dense decoders, as the families read them from `config.json`."""

from dataclasses import dataclass, replace
from typing import Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.models.delta_rule import DeltaRule
from galley.models.experts import Experts
from galley.models.fields import FILE, Fields
from galley.models.latent import Latent
from galley.models.mamba import Mamba
from galley.models.rope import Rope, read_rope

MAX_HEAD_DIM: Final = 2**14
"""Maximum number of columns of an attention head; the widest published ones have some hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Names of a layer's norms, before and after its two parts; None where there is none.

    ``kind``: "rms", "layer" with biases, or "unbiased" layer norms.
    """

    kind: str = "rms"
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of a checkpoint's tensors, where families differ; ``.weight`` or ``.bias`` is appended.

    A layer's number is appended to ``layers``; ``attention`` and ``mlp`` are parts of a layer, and
    the remaining names are parts of these.
    """

    embedding: str = "model.embed_tokens"
    layers: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    attention: str = "self_attn"
    qkv: str = "qkv_proj"
    o: str = "o_proj"
    mlp: str = "mlp"
    up: str = "up_proj"
    gate_up: str = "gate_up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Describes a decoder; sizes are in elements.

    Attributes:
        ropes: rotary embedding of each layer; None: the layer has none.
        windows: attention window of each layer, in tokens; 0 is full attention.
        chunked: whether layers with a window see the tokens from its last multiple on, instead of a
            sliding window.
        growth: (interval, factor) by which queries grow in layers without rotary embedding, as in
            :meth:`Tracer.scale_queries_by_position`.
        tied: whether the embedding is the output projection.
        qk_norm: norms of q and k, over each "head" or over the whole "width"; "plain" norms, over
            each head, have no weights, and are only in layers with rotary embedding.
        fused_qkv: one tensor has q, k and v: all heads of each, or, with "head", the three of each
            head in turn.
        fused_mlp: whether one tensor has gate and up.
        norm_offset: added to the weights of norms.
        activation: "silu", "gelu" or its tanh approximation "gelu_tanh".
        gated: whether the activated gate multiplies ``up``; otherwise there is no gate, and the
            activation is applied to ``up``.
        parallel: whether the MLP reads the same input as attention, not its sum with attention's
            result: with a separate norm, or with attention's if ``norms.before_mlp`` is None.
        attention_scale: multiplies q k^T.
        attention_cap, logit_cap: soft caps of scores and logits; 0 is none.
        embedding_scale, residual_scale, logit_scale: multiply embeddings, what each half of a layer
            adds to the residual stream, and logits.
        names: names of tensors.
        prefix: prefix of the names of all tensors.
        experts: experts that replace the MLP of some layers.
        sinks: whether each head has a score that belongs to no value.
        latent: latent attention: the latent from which keys and values are made is cached instead
            of these.
        recurrent: recurrent layers that replace attention in some layers.
        output_gate: whether the projection of queries contains a gate after each head's query,
            whose sigmoid scales the output of attention.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    ropes: tuple[Rope | None, ...]
    windows: tuple[int, ...]
    tied: bool
    attention_scale: float
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str = ""
    fused_qkv: str = ""
    fused_mlp: bool = False
    norms: Norms = Norms()
    norm_offset: float = 0.0
    activation: str = "silu"
    gated: bool = True
    parallel: bool = False
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    names: Names = Names()
    prefix: str = ""
    experts: Experts | None = None
    sinks: bool = False
    latent: Latent | None = None
    recurrent: Mamba | DeltaRule | None = None
    output_gate: bool = False
    chunked: bool = False
    growth: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"{self.heads} heads are not a multiple of {self.kv_heads} KV heads",
                file=FILE,
                field="num_key_value_heads",
            )


def read_decoder(
    config: Fields,
    *,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    activations: tuple[str, ...] = ("silu", "swish"),
    max_positions: int = 2048,
    eps: float = 1e-6,
    theta: float = 1e4,
    partial: float | None = None,
    tied: bool = False,
) -> DecoderConfig:
    """Read the fields that all families have; a family replaces those that it treats differently.

    The arguments are the family's defaults, used if config.json does not specify a field.
    ``activations`` are the supported ones, of which the first is the default; for ``partial`` see
    :func:`galley.models.rope.read_rope`.
    """
    config.choice(("hidden_activation", "hidden_act"), activations, default=activations[0])
    hidden, heads = config.width("hidden_size"), config.width("num_attention_heads")
    layers = config.layers("num_hidden_layers")
    if head_dim is None and not config.has("head_dim") and hidden % heads:
        raise CheckpointError(
            f"{hidden} is not a multiple of {heads} heads, and head_dim is not given",
            file=FILE,
            field="hidden_size",
        )
    dim = config.count("head_dim", head_dim or max(1, hidden // heads), most=MAX_HEAD_DIM)
    if dim % 2:
        raise CheckpointError(f"is {dim}, must be even", file=FILE, field="head_dim")
    positions = config.count("max_position_embeddings", max_positions)
    rope = None
    if not config.section("rope_parameters").has(
        "full_attention"
    ):  # otherwise each type of layer has its own
        rope = read_rope(
            config,
            head_dim=dim,
            max_positions=positions,
            theta=config.number("rope_theta", theta),
            partial=partial,
        )
    return DecoderConfig(
        vocab_size=config.width("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.width("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=config.width("num_key_value_heads", kv_heads or heads),
        head_dim=dim,
        eps=config.number("rms_norm_eps", eps),
        max_positions=rope.max_positions if rope else positions,
        ropes=(rope,) * layers,
        windows=(0,) * layers,
        tied=config.flag("tie_word_embeddings", tied),
        attention_scale=dim**-0.5,
    )


def optional_windows(config: Fields) -> tuple[int, ...]:
    """Return Qwen's sliding windows, which are only in use with ``use_sliding_window``.

    They apply to the layers that config.json names, or to those from ``max_window_layers`` on.
    """
    layers = config.layers("num_hidden_layers")
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return (0,) * layers
    first = config.whole("max_window_layers", 28)
    return windows_of(config, [layer >= first for layer in range(layers)])


def windows_of(config: Fields, default: list[bool]) -> tuple[int, ...]:
    """Return each layer's window; 0: full attention.

    Layers with a window are those that ``layer_types`` names, or else ``default``.
    """
    if config.is_null("sliding_window"):
        return (0,) * len(default)
    window = config.count("sliding_window", 4096)
    kinds = config.words("layer_types")
    if kinds is None:
        return tuple(window if slides else 0 for slides in default)
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != len(default):
        raise UnsupportedModel(
            f"{FILE}: layer_types {shown(kinds)} does not describe {len(default)} layers"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def layer_kinds(config: Fields, layers: int, *, default: list[str]) -> tuple[bool, ...]:
    """Return for each layer whether it is recurrent, by ``layer_types``; others have attention.

    ``default`` are the types if config.json does not specify them.

    Raises:
        UnsupportedModel: a type is unknown, their number is not that of the layers, or no layer has
            attention.
    """
    kinds = config.words("layer_types") or config.words("layers_block_type") or default
    known = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}
    if len(kinds) != layers or not known.keys() >= set(kinds):
        raise UnsupportedModel(
            f"{FILE}: layer_types {shown(kinds)} does not describe {layers} layers of "
            f"{', '.join(known)}"
        )
    if all(known[kind] for kind in kinds):
        raise UnsupportedModel(f"{FILE}: layer_types has no attention layer")
    return tuple(known[kind] for kind in kinds)


def rope_by_window(
    config: Fields, c: DecoderConfig, *, theta: float, local_theta: float
) -> DecoderConfig:
    """Return ``c`` with other rotations in layers with a window than in those without.

    ``rope_parameters`` has both, or else only those of layers without a window are scaled.
    ``theta`` and ``local_theta`` are the bases for layers without and with a window, if config.json
    does not specify them.
    """
    ropes = config.section("rope_parameters")
    given = ropes.section("full_attention").updated(config.section("rope_scaling"))
    size = {"head_dim": c.head_dim, "max_positions": c.max_positions}
    whole = read_rope(
        config, **size, rope=given if ropes.has("full_attention") else None, theta=theta
    )
    local = read_rope(config, **size, rope=ropes.section("sliding_attention"), theta=local_theta)
    chosen = tuple(local if window else whole for window in c.windows)
    return replace(c, ropes=chosen, max_positions=whole.max_positions)
