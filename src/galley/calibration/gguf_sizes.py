"""A model's sizes and rotary embedding in the keys of GGUF files."""

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from galley.engine.read_model import Model
from galley.errors import UnsupportedModel
from galley.formats.weights import Floats
from galley.graph.program import Op, Program
from galley.models.fields import Fields
from galley.models.rope import SECTIONS

Metadata: TypeAlias = dict[str, Any]

_KINDS: Final = ("default", "linear", "llama3", "yarn")
_OWN_SCALES: Final = ("attention_factor", "mscale", "mscale_all_dim")


class Sizes(NamedTuple):
    """See :class:`galley.calibration.to_gguf.ToGGUF`."""

    metadata: Metadata
    factors: Floats | None
    notes: tuple[str, ...]


def sizes_of(model: Model, architecture: str) -> Sizes:
    """Return all keys except the tokenizer's.

    Raises:
        UnsupportedModel: windows or a rotary embedding that llama.cpp's ``architecture`` does not have.
    """
    program = model.program
    shapes, kv = program.shapes, program.kv[0]
    vocabulary, hidden = shapes["model.embed_tokens.weight"]
    layer = "model.layers.0"
    keys: Metadata = {
        "vocab_size": vocabulary,
        "context_length": program.max_positions,
        "embedding_length": hidden,
        "feed_forward_length": shapes[f"{layer}.mlp.up_proj.weight"][0],
        "block_count": len(program.kv),
        "attention.head_count": shapes[f"{layer}.self_attn.q_proj.weight"][0] // kv.key_dim,
        "attention.head_count_kv": kv.kv_heads,
        "attention.key_length": kv.key_dim,
        "attention.value_length": kv.value_dim,
        "attention.layer_norm_rms_epsilon": float(_op(program, "rms_norm").attrs["eps"]),
        "rope.dimension_count": kv.key_dim,
    }
    windows = {layer.window for layer in program.kv}
    notes: tuple[str, ...] = ()
    if windows != {0}:
        if architecture != "llama" or len(windows) > 1:
            raise UnsupportedModel(
                f"sliding_window: llama.cpp's {architecture} has no sliding-window attention"
            )
        keys["attention.sliding_window"] = kv.window
        notes = (
            f"llama.cpp attends to the whole context, this model only to the last {kv.window} tokens: "
            "answers to longer texts differ",
        )
    rope, factors = _rope(model)
    found = {f"{architecture}.{key}": value for key, value in (keys | rope).items()}
    return Sizes(found, factors, notes)


def _rope(model: Model) -> tuple[Metadata, Floats | None]:
    config = Fields(model.checkpoint.config)
    rope = config.section(*SECTIONS)
    kind = rope.choice(("rope_type", "type"), _KINDS, default="default")
    theta = rope.number("rope_theta", config.number("rope_theta", 1e4))
    keys: Metadata = {"rope.freq_base": float(theta)}
    if kind == "default":
        return keys, None
    if kind == "linear":
        return keys | _scaling(kind, rope.number("factor")), None
    if kind == "llama3":
        inv_freq = np.array(_op(model.program, "rope").attrs["inv_freq"], np.float64)
        exponents = np.arange(len(inv_freq)) / len(inv_freq)
        return keys, (theta**-exponents / inv_freq).astype(np.float32)
    for name in _OWN_SCALES:
        if rope.has(name):
            raise UnsupportedModel(f"rope_parameters.{name}: GGUF files have no key for it")
    if not rope.flag("truncate", True):
        raise UnsupportedModel("rope_parameters.truncate is false: llama.cpp always truncates")
    positions = config.count("max_position_embeddings", model.program.max_positions)
    name = "original_max_position_embeddings"
    trained = config.count(name, rope.count(name, positions))
    keys |= _scaling(kind, rope.number("factor", positions / trained))
    keys["rope.scaling.original_context_length"] = trained
    for name in ("beta_fast", "beta_slow"):
        if rope.has(name):
            keys[f"rope.scaling.yarn_{name}"] = float(rope.number(name))
    return keys, None


def _scaling(kind: str, factor: float) -> Metadata:
    return {"rope.scaling.type": kind, "rope.scaling.factor": float(factor)}


def _op(program: Program, name: str) -> Op:
    return next(op for op in program.ops if op.name == name)
