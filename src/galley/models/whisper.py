"""Whisper, tiny to large-v3-turbo, and Distil-Whisper: an encoder over log-mel features and a decoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from galley.errors import CheckpointError
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace, trace_effect
from galley.models.fields import FILE, GENERATION_FILE, Fields

DECODER: Final = "model.decoder"
EPS: Final = 1e-5
"""Epsilon of every layer norm; the family's configs do not specify it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """Sizes in elements. An encoder input has up to ``2 * source_positions`` frames.

    ``scale_embedding`` of config.json is not read: it has no effect in transformers either.
    """

    vocab_size: int
    mels: int
    width: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn: int
    decoder_layers: int
    decoder_heads: int
    decoder_ffn: int
    source_positions: int
    target_positions: int
    tied: bool

    def __post_init__(self) -> None:
        for field, heads in (
            ("encoder_attention_heads", self.encoder_heads),
            ("decoder_attention_heads", self.decoder_heads),
        ):
            if self.width % heads:
                raise CheckpointError(
                    f"is {heads}, which does not divide d_model {self.width}",
                    file=FILE,
                    field=field,
                )


def read_config(config: Fields) -> WhisperConfig:
    """Read the fields. Defaults are those of transformers' ``WhisperConfig``."""
    config.choice(("activation_function",), ("gelu",), default="gelu")
    return WhisperConfig(
        vocab_size=config.width("vocab_size", 51865),
        mels=config.width("num_mel_bins", 80),
        width=config.width("d_model", 384),
        encoder_layers=config.layers("encoder_layers", 4),
        encoder_heads=config.width("encoder_attention_heads", 6),
        encoder_ffn=config.width("encoder_ffn_dim", 1536),
        decoder_layers=config.layers("decoder_layers", 4),
        decoder_heads=config.width("decoder_attention_heads", 6),
        decoder_ffn=config.width("decoder_ffn_dim", 1536),
        source_positions=config.width("max_source_positions", 1500),
        target_positions=config.width("max_target_positions", 448),
        tied=config.flag("tie_word_embeddings", True),
    )


def build(config: Fields) -> Program:
    """Trace the decoder's program, which contains the encoder's."""
    c = read_config(config)
    encoder = build_encoder(config)
    return trace(lambda g: _decoder(g, c), max_positions=c.target_positions, encoder=encoder)


def build_encoder(config: Fields, *, returns_rows: bool = False) -> Program:
    """Trace frames -> keys and values for the decoder; with ``returns_rows``, also its rows."""
    c = read_config(config)
    return trace_effect(
        lambda g: _encoder(g, c, returns_rows), max_positions=2 * c.source_positions
    )


def build_cross_kv(config: Fields) -> Program:
    """Trace the rows of another model's encoder -> keys and values for the decoder.

    The program takes the place of an encoder that both models share.
    """
    c = read_config(config)
    return trace_effect(
        lambda g: _write_cross_kv(g, c, g.features(c.width)), max_positions=c.source_positions
    )


def build_aligner(config: Fields, heads: Sequence[tuple[int, int]]) -> Program:
    """Trace the part of the decoder that computes the attention weights of ``heads`` (layer, head).

    Raises:
        CheckpointError: the model has no such layer or head.
    """
    c = read_config(config)
    for layer, head in heads:
        if not (0 <= layer < c.decoder_layers and 0 <= head < c.decoder_heads):
            raise CheckpointError(
                f"lists head {head} of layer {layer}, but the decoder has {c.decoder_layers} layers of "
                f"{c.decoder_heads} heads",
                file=GENERATION_FILE,
                field="alignment_heads",
            )
    return trace_effect(lambda g: _aligner(g, c, heads), max_positions=c.target_positions)


def _encoder(g: Tracer, c: WhisperConfig, returns_rows: bool) -> None:
    """Describe frames -> keys and values for each layer of the decoder, named as in checkpoints."""
    name = "model.encoder"
    x = g.features(c.mels)
    for conv, stride in (("conv1", 1), ("conv2", 2)):
        weight, bias = f"{name}.{conv}.weight", f"{name}.{conv}.bias"
        x = g.gelu(g.conv1d(x, weight, c.width, bias=bias, size=3, stride=stride))
    positions = f"{name}.embed_positions.weight"
    x = g.add(x, g.embed_positions(positions, positions=c.source_positions, width=c.width))
    head_dim = c.width // c.encoder_heads
    for layer in (f"{name}.layers.{i}" for i in range(c.encoder_layers)):
        h = g.layer_norm(x, f"{layer}.self_attn_layer_norm", eps=EPS)
        q, k, v = _qkv(g, h, f"{layer}.self_attn")
        mixed = g.encoder_attention(q, k, v, key_dim=head_dim, scale=head_dim**-0.5)
        x = g.add(x, _project(g, mixed, f"{layer}.self_attn.out_proj", c.width))
        x = g.add(x, _mlp(g, x, layer, c.encoder_ffn))
    x = g.layer_norm(x, f"{name}.layer_norm", eps=EPS)
    if returns_rows:
        g.encoder_rows(x)
    _write_cross_kv(g, c, x)


def _write_cross_kv(g: Tracer, c: WhisperConfig, x: Buffer) -> None:
    """Describe the encoder's rows -> keys and values for each layer of the decoder."""
    for attention in (f"model.decoder.layers.{i}.encoder_attn" for i in range(c.decoder_layers)):
        k, v = _key_value(g, x, attention)
        g.cross_kv(k, v, key_dim=c.width // c.decoder_heads)


def _decoder(g: Tracer, c: WhisperConfig) -> Buffer:
    """Describe token ids -> logits of the wanted rows."""
    x = _embed_tokens(g, c)
    for layer in range(c.decoder_layers):
        x, q = _until_cross_attention(g, c, x, layer)
        x = _after_cross_query(g, c, x, q, layer)
    x = g.layer_norm(g.select_rows(x), f"{DECODER}.layer_norm", eps=EPS)
    embedding = f"{DECODER}.embed_tokens.weight"
    return g.linear(x, embedding if c.tied else "proj_out.weight", c.vocab_size)


def _aligner(g: Tracer, c: WhisperConfig, heads: Sequence[tuple[int, int]]) -> None:
    """Describe token ids -> cross-attention weights of ``heads``, in the order of their layers."""
    x, first = _embed_tokens(g, c), 0
    head_dim = c.width // c.decoder_heads
    last = max(layer for layer, _ in heads)
    for layer in range(last + 1):
        x, q = _until_cross_attention(g, c, x, layer)
        chosen = tuple(head for at, head in heads if at == layer)
        if chosen:
            g.cross_weights(q, chosen, first=first, scale=head_dim**-0.5)
            first += len(chosen)
        if layer < last:
            x = _after_cross_query(g, c, x, q, layer)


def _embed_tokens(g: Tracer, c: WhisperConfig) -> Buffer:
    tokens = g.embed(f"{DECODER}.embed_tokens.weight", vocab=c.vocab_size, width=c.width)
    name = f"{DECODER}.embed_positions.weight"
    return g.add(tokens, g.embed_positions(name, positions=c.target_positions, width=c.width))


def _until_cross_attention(
    g: Tracer, c: WhisperConfig, x: Buffer, number: int
) -> tuple[Buffer, Buffer]:
    """Return the residual stream after a layer's self-attention, and its cross-attention's query."""
    layer, head_dim = f"{DECODER}.layers.{number}", c.width // c.decoder_heads
    h = g.layer_norm(x, f"{layer}.self_attn_layer_norm", eps=EPS)
    q, k, v = _qkv(g, h, f"{layer}.self_attn")
    mixed = g.attention(q, k, v, key_dim=head_dim, scale=head_dim**-0.5, window=0)
    x = g.add(x, _project(g, mixed, f"{layer}.self_attn.out_proj", c.width))
    h = g.layer_norm(x, f"{layer}.encoder_attn_layer_norm", eps=EPS)
    return x, _project(g, h, f"{layer}.encoder_attn.q_proj", c.width)


def _after_cross_query(g: Tracer, c: WhisperConfig, x: Buffer, q: Buffer, number: int) -> Buffer:
    """Describe the rest of the layer."""
    layer, head_dim = f"{DECODER}.layers.{number}", c.width // c.decoder_heads
    mixed = g.cross_attention(q, scale=head_dim**-0.5)
    x = g.add(x, _project(g, mixed, f"{layer}.encoder_attn.out_proj", c.width))
    return g.add(x, _mlp(g, x, layer, c.decoder_ffn))


def _qkv(g: Tracer, h: Buffer, name: str) -> tuple[Buffer, Buffer, Buffer]:
    return (_project(g, h, f"{name}.q_proj", h.width), *_key_value(g, h, name))


def _key_value(g: Tracer, h: Buffer, name: str) -> tuple[Buffer, Buffer]:
    """Return keys and values; keys have no bias, because it would not affect the softmax."""
    return g.linear(h, f"{name}.k_proj.weight", h.width), _project(g, h, f"{name}.v_proj", h.width)


def _mlp(g: Tracer, x: Buffer, layer: str, ffn: int) -> Buffer:
    h = g.layer_norm(x, f"{layer}.final_layer_norm", eps=EPS)
    return _project(g, g.gelu(_project(g, h, f"{layer}.fc1", ffn)), f"{layer}.fc2", x.width)


def _project(g: Tracer, x: Buffer, name: str, width: int) -> Buffer:
    return g.linear(x, f"{name}.weight", width, bias=f"{name}.bias")
