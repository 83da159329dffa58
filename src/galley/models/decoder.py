"""The dense pre-norm decoder that Llama, Mistral, Qwen2 and Qwen3 share; they differ by config."""

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
class DecoderConfig:
    """Sizes in elements. ``windows`` has one entry per layer, in tokens; 0 is full attention."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope
    windows: tuple[int, ...]
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly",
                file=FILE,
                field="num_key_value_heads",
            )
        if self.head_dim % 2:
            raise CheckpointError(f"is {self.head_dim}, must be even", file=FILE, field="head_dim")


def read_decoder(
    config: Fields,
    *,
    windows: tuple[int, ...] = (),
    head_dim: int | None = None,
    kv_heads: int | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> DecoderConfig:
    """The fields all families have; the arguments are what a family does differently.

    ``head_dim`` and ``kv_heads`` are the family's defaults when config.json does not say.
    """
    config.choice(("hidden_act",), ("silu", "swish"), default="silu")
    hidden, heads = config.width("hidden_size"), config.width("num_attention_heads")
    layers = config.layers("num_hidden_layers")
    if head_dim is None and not config.has("head_dim") and hidden % heads:
        raise CheckpointError(
            f"{hidden} is no multiple of {heads} heads and head_dim is not given",
            file=FILE,
            field="hidden_size",
        )
    dim = config.count("head_dim", head_dim or max(1, hidden // heads), most=MAX_HEAD_DIM)
    rope = read_rope(
        config, head_dim=dim, max_positions=config.count("max_position_embeddings", 2048)
    )
    return DecoderConfig(
        vocab_size=config.width("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.width("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=config.width("num_key_value_heads", kv_heads or heads),
        head_dim=dim,
        eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        windows=windows or (0,) * layers,
        tied=config.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def optional_windows(config: Fields) -> tuple[int, ...]:
    """Qwen's sliding windows: if ``use_sliding_window``, of the layers that its config names or counts."""
    layers = config.layers("num_hidden_layers")
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return (0,) * layers
    window = config.count("sliding_window")
    kinds = config.words("layer_types")
    if kinds is None:
        first = config.whole("max_window_layers", 28)
        return tuple(window if layer >= first else 0 for layer in range(layers))
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != layers:
        raise UnsupportedModel(
            f"{FILE}: layer_types {shown(kinds)} does not describe {layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def build_decoder(c: DecoderConfig) -> Program:
    """Trace the model."""
    return trace(lambda g: describe_decoder(g, c), max_positions=c.rope.max_positions)


def describe_decoder(g: Tracer, c: DecoderConfig) -> Buffer:
    """Token ids -> logits of the wanted rows. Tensor names as in Hugging Face checkpoints."""
    embedding = "model.embed_tokens.weight"
    x = g.embed(embedding, vocab=c.vocab_size, width=c.hidden_size)
    for layer in range(c.layers):
        name = f"model.layers.{layer}"
        h = g.rms_norm(x, f"{name}.input_layernorm.weight", eps=c.eps)
        x = g.add(x, _attention(g, c, h, f"{name}.self_attn", c.windows[layer]))
        h = g.rms_norm(x, f"{name}.post_attention_layernorm.weight", eps=c.eps)
        x = g.add(x, _mlp(g, c, h, f"{name}.mlp"))
    x = g.rms_norm(g.select_rows(x), "model.norm.weight", eps=c.eps)
    return g.linear(x, embedding if c.tied else "lm_head.weight", c.vocab_size)


def _attention(g: Tracer, c: DecoderConfig, h: Buffer, name: str, window: int) -> Buffer:
    def project(role: str, width: int, source: Buffer, bias: bool) -> Buffer:
        full = f"{name}.{role}_proj"
        return g.linear(source, f"{full}.weight", width, bias=f"{full}.bias" if bias else None)

    q = project("q", c.heads * c.head_dim, h, c.qkv_bias)
    k = project("k", c.kv_heads * c.head_dim, h, c.qkv_bias)
    v = project("v", c.kv_heads * c.head_dim, h, c.qkv_bias)
    if c.qk_norm:
        q = g.rms_norm(q, f"{name}.q_norm.weight", eps=c.eps, head_dim=c.head_dim)
        k = g.rms_norm(k, f"{name}.k_norm.weight", eps=c.eps, head_dim=c.head_dim)
    q = g.rope(q, head_dim=c.head_dim, inv_freq=c.rope.inv_freq, scale=c.rope.scale)
    k = g.rope(k, head_dim=c.head_dim, inv_freq=c.rope.inv_freq, scale=c.rope.scale)
    mixed = g.attention(q, k, v, key_dim=c.head_dim, scale=c.head_dim**-0.5, window=window)
    return project("o", c.hidden_size, mixed, c.o_bias)


def _mlp(g: Tracer, c: DecoderConfig, h: Buffer, name: str) -> Buffer:
    def project(role: str, width: int, source: Buffer) -> Buffer:
        full = f"{name}.{role}_proj"
        bias = f"{full}.bias" if c.mlp_bias else None
        return g.linear(source, f"{full}.weight", width, bias=bias)

    gate = project("gate", c.intermediate_size, h)
    up = project("up", c.intermediate_size, h)
    return project("down", c.hidden_size, g.silu_mul(gate, up))
