"""ModernBERT (arXiv:2412.13663): rotations, gated layers, and local attention in most layers."""

from galley.errors import CheckpointError, UnsupportedModel
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.models.fields import FILE, Fields
from galley.models.rope import Rope, read_rope

_LOCAL, _WHOLE = "sliding_attention", "full_attention"


def build(config: Fields) -> Program:
    """Trace token ids -> rows after the last norm, [wanted rows, hidden_size]."""
    config.choice(("hidden_activation",), ("gelu",), default="gelu")
    positions = config.count("max_position_embeddings", 8192)
    return trace(lambda g: _describe(g, config, positions), max_positions=positions)


def _kinds(c: Fields) -> list[str]:
    """Return the type of each layer's attention."""
    layers = c.layers("num_hidden_layers", 22)
    period = c.count("global_attn_every_n_layers", 3)
    kinds = c.words("layer_types")
    kinds = [_LOCAL if i % period else _WHOLE for i in range(layers)] if kinds is None else kinds
    if len(kinds) != layers or not {*kinds} <= {_LOCAL, _WHOLE}:
        raise UnsupportedModel(f"{FILE}: layer_types does not describe {layers} layers")
    return kinds


def _ropes(c: Fields, head_dim: int, positions: int) -> dict[str, Rope]:
    given, scaling = c.section("rope_parameters"), c.section("rope_scaling")
    thetas = {_WHOLE: ("global_rope_theta", 160000.0), _LOCAL: ("local_rope_theta", 10000.0)}
    return {
        kind: read_rope(
            c,
            head_dim=head_dim,
            max_positions=positions,
            rope=given.section(kind).updated(scaling),
            theta=c.number(name, theta),
        )
        for kind, (name, theta) in thetas.items()
    }


def _describe(g: Tracer, c: Fields, positions: int) -> Buffer:
    """Describe the encoder, with tensor names as in ``ModernBertModel``."""
    width, ffn = c.width("hidden_size", 768), c.width("intermediate_size", 1152)
    heads, eps = c.width("num_attention_heads", 12), c.number("norm_eps", 1e-5)
    if width % heads:
        raise CheckpointError(
            f"is {heads}, which does not divide hidden_size {width}",
            file=FILE,
            field="num_attention_heads",
        )
    dim, near = width // heads, c.count("local_attention", 128) // 2
    norm_bias, ropes = c.flag("norm_bias", False), _ropes(c, width // heads, positions)
    attention_bias, mlp_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)

    def norm(x: Buffer, name: str) -> Buffer:
        return g.layer_norm(x, name, eps=eps, bias=norm_bias)

    def project(x: Buffer, name: str, columns: int, bias: bool) -> Buffer:
        return g.linear(x, f"{name}.weight", columns, bias=f"{name}.bias" if bias else None)

    vocab = c.width("vocab_size", 50368)
    x = g.embed("embeddings.tok_embeddings.weight", vocab=vocab, width=width)
    x = norm(x, "embeddings.norm")
    for i, kind in enumerate(_kinds(c)):
        layer = f"layers.{i}"
        h = norm(x, f"{layer}.attn_norm") if i else x
        wide = project(h, f"{layer}.attn.Wqkv", 3 * width, attention_bias)
        q, k, v = (g.columns(wide, part * width, width) for part in range(3))
        rope, seen = ropes[kind], near if kind == _LOCAL else -1
        q, k = (
            g.rope(one, head_dim=dim, inv_freq=rope.inv_freq, scale=rope.scale) for one in (q, k)
        )
        mixed = g.encoder_attention(q, k, v, key_dim=dim, scale=dim**-0.5, before=seen, after=seen)
        x = g.add(x, project(mixed, f"{layer}.attn.Wo", width, attention_bias))
        wide = project(norm(x, f"{layer}.mlp_norm"), f"{layer}.mlp.Wi", 2 * ffn, mlp_bias)
        h = g.gelu_mul(g.columns(wide, 0, ffn), g.columns(wide, ffn, ffn))
        x = g.add(x, project(h, f"{layer}.mlp.Wo", width, mlp_bias))
    return norm(g.select_rows(x), "final_norm")
