"""The dense decoder of all families of text models: what they differ by is :class:`DecoderConfig`."""

from dataclasses import dataclass
from typing import Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.models.fields import FILE, Fields
from galley.models.rope import Rope, read_rope

MAX_HEAD_DIM: Final = 2**14
"""Columns of an attention head; the widest published ones have some hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Names of a layer's norms, before and after its two parts; None where there is none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes in elements.

    Attributes:
        ropes: of each layer; None turns nothing.
        windows: of each layer, in tokens; 0 is full attention.
        tied: the embedding is the output projection.
        qk_norm: RMS norms of q and k, over each "head" or over the whole "width".
        fused: one tensor has q, k and v (``qkv_proj``), one gate and up (``gate_up_proj``).
        norm_offset: added to the weights of norms.
        gelu: the gate is GELU by its tanh approximation, not SiLU.
        attention_scale: of q k^T.
        attention_cap, logit_cap: of scores and logits; 0 is none.
        embedding_scale, residual_scale, logit_scale: multiply embeddings, what each half of a layer adds
            to the residual stream, and logits.
        prefix: of the names of all tensors.
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
    fused: bool = False
    norms: Norms = Norms()
    norm_offset: float = 0.0
    gelu: bool = False
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly",
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
    """The fields all families have; a family replaces what it does differently.

    The arguments are the family's defaults when config.json does not say; ``activations`` are the known
    ones, the first by default, and ``partial`` is as :func:`galley.models.rope.read_rope` takes it.
    """
    config.choice(("hidden_activation", "hidden_act"), activations, default=activations[0])
    hidden, heads = config.width("hidden_size"), config.width("num_attention_heads")
    layers = config.layers("num_hidden_layers")
    if head_dim is None and not config.has("head_dim") and hidden % heads:
        raise CheckpointError(
            f"{hidden} is no multiple of {heads} heads and head_dim is not given",
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
    ):  # else each kind of layer has its own
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
    """Qwen's sliding windows: if ``use_sliding_window``, of the layers that its config names or counts."""
    layers = config.layers("num_hidden_layers")
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return (0,) * layers
    first = config.whole("max_window_layers", 28)
    return windows_of(config, [layer >= first for layer in range(layers)])


def windows_of(config: Fields, default: list[bool]) -> tuple[int, ...]:
    """``sliding_window`` of the layers that ``layer_types`` names, or ``default`` does; 0 of others."""
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


def build_decoder(c: DecoderConfig) -> Program:
    """Trace the model."""
    return trace(lambda g: describe_decoder(g, c), max_positions=c.max_positions)


def describe_decoder(g: Tracer, c: DecoderConfig) -> Buffer:
    """Token ids -> logits of the wanted rows. Tensor names as in Hugging Face checkpoints."""
    embedding = f"{c.prefix}model.embed_tokens.weight"
    x = _scaled(g, g.embed(embedding, vocab=c.vocab_size, width=c.hidden_size), c.embedding_scale)
    for layer in range(c.layers):
        name, norms = f"{c.prefix}model.layers.{layer}", c.norms
        h = _norm(g, c, x, name, norms.before_attention)
        h = _attention(g, c, h, f"{name}.self_attn", layer)
        h = _norm(g, c, h, name, norms.after_attention)
        x = g.add(x, _scaled(g, h, c.residual_scale))
        h = _norm(g, c, x, name, norms.before_mlp)
        h = _norm(g, c, _mlp(g, c, h, f"{name}.mlp"), name, norms.after_mlp)
        x = g.add(x, _scaled(g, h, c.residual_scale))
    x = _norm(g, c, g.select_rows(x), f"{c.prefix}model", "norm")
    logits = g.linear(x, embedding if c.tied else f"{c.prefix}lm_head.weight", c.vocab_size)
    logits = _scaled(g, logits, c.logit_scale)
    return g.soft_cap(logits, c.logit_cap) if c.logit_cap else logits


def _scaled(g: Tracer, x: Buffer, factor: float) -> Buffer:
    return x if factor == 1.0 else g.scale(x, factor)


def _norm(
    g: Tracer,
    c: DecoderConfig,
    x: Buffer,
    owner: str,
    name: str | None,
    head_dim: int | None = None,
) -> Buffer:
    """``x`` as it is if there is no norm of that name."""
    if name is None:
        return x
    weight = f"{owner}.{name}.weight"
    return g.rms_norm(x, weight, eps=c.eps, head_dim=head_dim, offset=c.norm_offset)


def _attention(g: Tracer, c: DecoderConfig, h: Buffer, name: str, layer: int) -> Buffer:
    def project(role: str, width: int, source: Buffer, bias: bool) -> Buffer:
        full = f"{name}.{role}_proj"
        return g.linear(source, f"{full}.weight", width, bias=f"{full}.bias" if bias else None)

    widths = {"q": c.heads * c.head_dim, "k": c.kv_heads * c.head_dim, "v": c.kv_heads * c.head_dim}
    if c.fused:
        wide = project("qkv", sum(widths.values()), h, c.qkv_bias)
        q, k, v = _parts(g, wide, *widths.values())
    else:
        q, k, v = (project(role, width, h, c.qkv_bias) for role, width in widths.items())
    if c.qk_norm:
        group = c.head_dim if c.qk_norm == "head" else None
        q = _norm(g, c, q, name, "q_norm", group)
        k = _norm(g, c, k, name, "k_norm", group)
    if rope := c.ropes[layer]:
        q = g.rope(q, head_dim=c.head_dim, inv_freq=rope.inv_freq, scale=rope.scale)
        k = g.rope(k, head_dim=c.head_dim, inv_freq=rope.inv_freq, scale=rope.scale)
    mixed = g.attention(
        q,
        k,
        v,
        key_dim=c.head_dim,
        scale=c.attention_scale,
        window=c.windows[layer],
        cap=c.attention_cap,
    )
    return project("o", c.hidden_size, mixed, c.o_bias)


def _parts(g: Tracer, wide: Buffer, *widths: int) -> list[Buffer]:
    """The columns of ``wide``, so many after so many."""
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [g.columns(wide, start, width) for start, width in zip(starts, widths, strict=True)]


def _mlp(g: Tracer, c: DecoderConfig, h: Buffer, name: str) -> Buffer:
    def project(role: str, width: int, source: Buffer) -> Buffer:
        full = f"{name}.{role}_proj"
        bias = f"{full}.bias" if c.mlp_bias else None
        return g.linear(source, f"{full}.weight", width, bias=bias)

    width = c.intermediate_size
    if c.fused:
        gate, up = _parts(g, project("gate_up", 2 * width, h), width, width)
    else:
        gate, up = project("gate", width, h), project("up", width, h)
    product = g.gelu_tanh_mul if c.gelu else g.silu_mul
    return project("down", c.hidden_size, product(gate, up))
