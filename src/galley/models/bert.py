"""BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692) and XLM-RoBERTa: encoders of whole texts."""

from galley.errors import CheckpointError, UnsupportedModel
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.models.fields import FILE, Fields


def build(config: Fields) -> Program:
    """Trace token ids -> rows of the last layer, [wanted rows, hidden_size].

    RoBERTa's positions begin after the padding token's id.
    """
    if config.flag("is_decoder", False) or config.flag("add_cross_attention", False):
        raise UnsupportedModel(f"{FILE}: is_decoder and add_cross_attention are not supported")
    config.choice(("position_embedding_type",), ("absolute",), default="absolute")
    config.choice(("hidden_act",), ("gelu",), default="gelu")
    known = ("bert", "roberta", "xlm-roberta")
    family = config.choice(("model_type",), known, default="bert")
    positions = config.width("max_position_embeddings", 512)
    first = 0 if family == "bert" else config.whole("pad_token_id", 1) + 1
    if first >= positions:
        raise CheckpointError(
            f"is {first - 1}, which leaves none of the {positions} positions of max_position_embeddings",
            file=FILE,
            field="pad_token_id",
        )
    return trace(lambda g: _describe(g, config, first), max_positions=positions - first)


def _describe(g: Tracer, c: Fields, first: int) -> Buffer:
    """Describe the encoder, with tensor names as in ``BertModel``."""
    width, eps = c.width("hidden_size", 768), c.number("layer_norm_eps", 1e-12)
    heads, ffn = c.width("num_attention_heads", 12), c.width("intermediate_size", 3072)
    if width % heads:
        raise CheckpointError(
            f"is {heads}, which does not divide hidden_size {width}",
            file=FILE,
            field="num_attention_heads",
        )
    name = "embeddings"
    x = g.embed(f"{name}.word_embeddings.weight", vocab=c.width("vocab_size", 30522), width=width)
    types, positions = c.width("type_vocab_size", 2), c.width("max_position_embeddings", 512)
    x = g.add(x, g.embed_types(f"{name}.token_type_embeddings.weight", types=types, width=width))
    table = f"{name}.position_embeddings.weight"
    x = g.add(x, g.embed_positions(table, positions=positions, width=width, first=first))
    x = g.layer_norm(x, f"{name}.LayerNorm", eps=eps)
    for layer in (f"encoder.layer.{i}" for i in range(c.layers("num_hidden_layers", 12))):
        part = f"{layer}.attention"
        q, k, v = (_project(g, x, f"{part}.self.{r}", width) for r in ("query", "key", "value"))
        dim = width // heads
        mixed = g.encoder_attention(q, k, v, key_dim=dim, scale=dim**-0.5)
        h = _project(g, mixed, f"{part}.output.dense", width)
        x = g.layer_norm(g.add(h, x), f"{part}.output.LayerNorm", eps=eps)
        h = g.gelu(_project(g, x, f"{layer}.intermediate.dense", ffn))
        h = _project(g, h, f"{layer}.output.dense", width)
        x = g.layer_norm(g.add(h, x), f"{layer}.output.LayerNorm", eps=eps)
    return g.select_rows(x)


def _project(g: Tracer, x: Buffer, name: str, width: int) -> Buffer:
    return g.linear(x, f"{name}.weight", width, bias=f"{name}.bias")
