"""The decoder of all families of text models; families differ in their :class:`DecoderConfig`."""

from collections.abc import Sequence

from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.models.decoder_config import DecoderConfig
from galley.models.experts import describe_experts
from galley.models.latent import describe_latent
from galley.models.rope import Rope


def build_decoder(c: DecoderConfig) -> Program:
    """Trace the model."""
    return trace(lambda g: describe_decoder(g, c), max_positions=c.max_positions)


def describe_decoder(g: Tracer, c: DecoderConfig) -> Buffer:
    """Describe token ids -> logits of the wanted rows. Tensor names are those of Hugging Face."""
    embedding = f"{c.prefix}{c.names.embedding}.weight"
    x = _scaled(g, g.embed(embedding, vocab=c.vocab_size, width=c.hidden_size), c.embedding_scale)
    for layer in range(c.layers):
        name, norms, begin = f"{c.prefix}{c.names.layers}.{layer}", c.norms, x
        normed = _norm(g, c, x, name, norms.before_attention)
        if c.recurrent is not None and c.recurrent.layers[layer]:
            h = c.recurrent.describe(g, normed, name, eps=c.eps)
        else:
            h = _attention(g, c, normed, f"{name}.{c.names.attention}", layer)
        h = _norm(g, c, h, name, norms.after_attention)
        x = g.add(x, _scaled(g, h, c.residual_scale))
        if c.parallel:
            h = _norm(g, c, begin, name, norms.before_mlp) if norms.before_mlp else normed
        else:
            h = _norm(g, c, x, name, norms.before_mlp)
        if c.experts is not None and c.experts.sparse[layer]:
            routed = describe_experts(g, c.experts, h, name)
            added = c.experts.added_to_mlp
            h = g.add(routed, _mlp(g, c, h, f"{name}.{c.names.mlp}")) if added else routed
        else:
            h = _mlp(g, c, h, f"{name}.{c.names.mlp}")
        h = _norm(g, c, h, name, norms.after_mlp)
        x = g.add(x, _scaled(g, h, c.residual_scale))
    x = _norm(g, c, g.select_rows(x), f"{c.prefix}{c.names.norm}")
    logits = g.linear(x, embedding if c.tied else f"{c.prefix}{c.names.head}.weight", c.vocab_size)
    logits = _scaled(g, logits, c.logit_scale)
    return g.soft_cap(logits, c.logit_cap) if c.logit_cap else logits


def _scaled(g: Tracer, x: Buffer, factor: float) -> Buffer:
    return x if factor == 1.0 else g.scale(x, factor)


def _norm(
    g: Tracer,
    c: DecoderConfig,
    x: Buffer,
    owner: str,
    name: str | None = "",
    head_dim: int | None = None,
) -> Buffer:
    """Apply the norm ``name`` of ``owner``; None: return ``x`` as it is, "": ``owner`` is the norm."""
    if name is None:
        return x
    full = f"{owner}.{name}" if name else owner
    if c.norms.kind != "rms":
        return g.layer_norm(x, full, eps=c.eps, bias=c.norms.kind == "layer", head_dim=head_dim)
    return g.rms_norm(x, f"{full}.weight", eps=c.eps, head_dim=head_dim, offset=c.norm_offset)


def _attention(g: Tracer, c: DecoderConfig, h: Buffer, name: str, layer: int) -> Buffer:
    if c.latent is not None:
        rope = c.ropes[layer]
        assert rope is not None
        return describe_latent(
            g,
            c.latent,
            h,
            name,
            heads=c.heads,
            hidden=c.hidden_size,
            rope=rope,
            scale=c.attention_scale,
        )
    q, k, v = _qkv(g, c, h, name)
    gate = None
    if c.output_gate:
        q, gate = (g.head_columns(q, i * c.head_dim, c.head_dim, 2 * c.head_dim) for i in (0, 1))
    if c.qk_norm in ("head", "width"):
        group = c.head_dim if c.qk_norm == "head" else None
        q = _norm(g, c, q, name, "q_norm", group)
        k = _norm(g, c, k, name, "k_norm", group)
    elif c.qk_norm == "plain" and c.ropes[layer]:
        q, k = (g.rms_norm(x, None, eps=c.eps, head_dim=c.head_dim) for x in (q, k))
    if rope := c.ropes[layer]:
        q, k = (_rotated(g, x, rope, c.head_dim) for x in (q, k))
    elif c.growth is not None:
        q = g.scale_queries_by_position(q, interval=c.growth[0], factor=c.growth[1])
    mixed = g.attention(
        q,
        k,
        v,
        key_dim=c.head_dim,
        scale=c.attention_scale,
        window=c.windows[layer],
        chunked=c.chunked and c.windows[layer] > 0,
        cap=c.attention_cap,
        sinks=f"{name}.sinks" if c.sinks else None,
    )
    if gate is not None:
        mixed = g.sigmoid_mul(gate, mixed)
    return _project(g, mixed, f"{name}.{c.names.o}", c.hidden_size, c.o_bias)


def _qkv(g: Tracer, c: DecoderConfig, h: Buffer, name: str) -> Sequence[Buffer]:
    q_width = c.heads * c.head_dim * (2 if c.output_gate else 1)
    widths = {"q": q_width, "k": c.kv_heads * c.head_dim, "v": c.kv_heads * c.head_dim}
    if not c.fused_qkv:
        return [_project(g, h, f"{name}.{r}_proj", w, c.qkv_bias) for r, w in widths.items()]
    wide = _project(g, h, f"{name}.{c.names.qkv}", sum(widths.values()), c.qkv_bias)
    if c.fused_qkv == "head":
        dim = c.head_dim
        return [g.head_columns(wide, start, dim, 3 * dim) for start in (0, dim, 2 * dim)]
    return _parts(g, wide, *widths.values())


def _rotated(g: Tracer, x: Buffer, rope: Rope, head_dim: int) -> Buffer:
    return g.rope(
        x, head_dim=head_dim, inv_freq=rope.inv_freq, scale=rope.scale, adjacent=rope.adjacent
    )


def _project(g: Tracer, x: Buffer, name: str, width: int, bias: bool) -> Buffer:
    return g.linear(x, f"{name}.weight", width, bias=f"{name}.bias" if bias else None)


def _parts(g: Tracer, wide: Buffer, *widths: int) -> list[Buffer]:
    """Split the columns of ``wide`` into consecutive parts of these widths."""
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [g.columns(wide, start, width) for start, width in zip(starts, widths, strict=True)]


def _mlp(g: Tracer, c: DecoderConfig, h: Buffer, name: str) -> Buffer:
    def project(role: str, width: int, source: Buffer) -> Buffer:
        return _project(g, source, f"{name}.{role}", width, c.mlp_bias)

    width = c.intermediate_size
    if not c.gated:
        activation = {"gelu": g.gelu, "gelu_tanh": g.gelu_tanh}[c.activation]
        return project(c.names.down, c.hidden_size, activation(project(c.names.up, width, h)))
    if c.fused_mlp:
        gate, up = _parts(g, project(c.names.gate_up, 2 * width, h), width, width)
    else:
        gate, up = project("gate_proj", width, h), project(c.names.up, width, h)
    product = {"silu": g.silu_mul, "gelu_tanh": g.gelu_tanh_mul}[c.activation]
    return project(c.names.down, c.hidden_size, product(gate, up))
