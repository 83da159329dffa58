"""Nomic Embed's encoder (arXiv:2402.01613): BERT with rotations and gated layers, without biases."""

from galley.errors import CheckpointError
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.models.fields import FILE, Fields
from galley.models.rope import Rope, read_rope

_OLD = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
"""Fields -> their names in the family's first checkpoints."""

_UNLIKE = (
    *("prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "use_rms_norm"),
    "rotary_emb_interleaved",
)
"""Flags that are not set in any of the family's published models."""


def build(config: Fields) -> Program:
    """Trace token ids -> rows of the last layer, [wanted rows, hidden_size]."""
    config.choice(("hidden_act", "activation_function"), ("silu", "swiglu"), default="silu")
    for name in _UNLIKE:
        if config.flag(name, False):
            raise config.wrong(name, "false")
    if config.number("rotary_emb_fraction", 1.0) != 1.0:
        raise config.wrong("rotary_emb_fraction", "1")
    if config.has("rotary_emb_scale_base"):
        raise config.wrong("rotary_emb_scale_base", "null")
    if config.whole("moe_every_n_layers", 0):
        raise config.wrong("moe_every_n_layers", "0: experts of this family are not supported")
    for name, old in _OLD.items():
        if config.has(old):
            config = config.with_value(name, old)
    positions = config.count("max_position_embeddings", 2048)
    if config.has("rotary_scaling_factor"):
        # Texts longer than in training would need other frequencies.
        positions = min(positions, config.count("max_trained_positions", 2048))
    dim = config.width("hidden_size", 768) // config.width("num_attention_heads", 12)
    rope = read_rope(
        config,
        head_dim=dim,
        max_positions=positions,
        theta=config.number("rope_theta", 1000.0),
    )
    return trace(lambda g: _describe(g, config, rope), max_positions=positions)


def _describe(g: Tracer, c: Fields, rope: Rope) -> Buffer:
    """Describe the encoder, with tensor names as in the checkpoints."""
    width, ffn = c.width("hidden_size", 768), c.width("intermediate_size", 3072)
    heads, eps = c.width("num_attention_heads", 12), c.number("layer_norm_eps", 1e-12)
    dim = width // heads
    if width % heads or dim % 2:
        raise CheckpointError(
            f"is {heads}, which does not divide hidden_size {width} into heads of even width",
            file=FILE,
            field="num_attention_heads",
        )
    vocab, types = c.width("vocab_size", 30528), c.width("type_vocab_size", 2)
    x = g.embed("embeddings.word_embeddings.weight", vocab=vocab, width=width)
    table = "embeddings.token_type_embeddings.weight"
    x = g.layer_norm(g.add(x, g.embed_types(table, types=types, width=width)), "emb_ln", eps=eps)
    for layer in (f"encoder.layers.{i}" for i in range(c.layers("num_hidden_layers", 12))):
        wide = g.linear(x, f"{layer}.attn.Wqkv.weight", 3 * width)
        q, k, v = (g.columns(wide, part * width, width) for part in range(3))
        q, k = (
            g.rope(one, head_dim=dim, inv_freq=rope.inv_freq, scale=rope.scale) for one in (q, k)
        )
        mixed = g.encoder_attention(q, k, v, key_dim=dim, scale=dim**-0.5)
        h = g.linear(mixed, f"{layer}.attn.out_proj.weight", width)
        x = g.layer_norm(g.add(x, h), f"{layer}.norm1", eps=eps)
        gate, up = (g.linear(x, f"{layer}.mlp.{name}.weight", ffn) for name in ("fc12", "fc11"))
        h = g.linear(g.silu_mul(gate, up), f"{layer}.mlp.fc2.weight", width)
        x = g.layer_norm(g.add(x, h), f"{layer}.norm2", eps=eps)
    return g.select_rows(x)
