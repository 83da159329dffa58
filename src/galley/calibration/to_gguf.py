"""Export of a checkpoint to one GGUF file for llama.cpp, with all values, sizes and tokens unchanged."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from galley.calibration.gguf_sizes import Metadata, sizes_of
from galley.engine.read_model import Model, read_model
from galley.errors import UnsupportedModel
from galley.formats.gguf_config import END_TEXTS, RECEIPT, SAMPLING
from galley.formats.gguf_names import gguf_name, permuted, permuted_heads
from galley.formats.gguf_pack import packed, type_of
from galley.formats.gguf_rope import ROPE_FACTORS
from galley.formats.gguf_writer import Bytes, Outgoing, write_gguf
from galley.formats.quantization import QUANTIZED_KEY
from galley.formats.weights import Floats, Weights
from galley.settings.engine import EngineSettings
from galley.text.gguf_vocabulary import vocabulary_of
from galley.text.template import GGUF_TEMPLATE
from galley.text.template_files import TOOL_USE, read_templates
from galley.types import SamplingDefaults

ARCHITECTURES: Final = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``model_type`` -> ``general.architecture`` of the written file."""

_BIASES: Final = {
    "llama": ("q", "k", "v", "o", "gate", "up", "down"),
    "qwen2": ("q", "k", "v"),
    "qwen3": (),
}
"""Architecture -> linear layers that can have a bias in GGUF."""


class ToGGUF(NamedTuple):
    """All of a file but its tensors' bytes.

    Attributes:
        metadata: its keys.
        factors: divisors of the rotary frequencies, if they are not those of the base alone.
        notes: ways in which llama.cpp's answers may differ, a sentence each.
    """

    metadata: Metadata
    factors: Floats | None
    notes: tuple[str, ...]


def prepare(model: Model, name: str, *, nearest_tokenizer: bool = False) -> ToGGUF:
    """Prepare a model's file without reading any tensor.

    Args:
        model: of a checkpoint in Hugging Face's layout.
        name: ``general.name``.
        nearest_tokenizer: also write a tokenizer that has no exact counterpart in llama.cpp.

    Raises:
        UnsupportedModel: the family, or something of the model or its tokenizer, does not exist in GGUF
            files or llama.cpp; the message names it.
        CheckpointError: the tokenizer is missing or damaged.
    """
    check_family(model)
    architecture = ARCHITECTURES[str(model.checkpoint.config["model_type"])]
    _check_biases(model, architecture)
    sizes, factors, notes = sizes_of(model, architecture)
    folder = model.checkpoint.folder
    if not folder.is_dir():
        raise UnsupportedModel(f"{folder}: writing GGUF needs a folder in Hugging Face's layout")
    vocabulary = vocabulary_of(folder, model.program.vocab_size)
    differs = "; ".join(vocabulary.differs)
    if differs and not nearest_tokenizer:
        raise UnsupportedModel(
            f"{folder}: llama.cpp has no equivalent of this tokenizer: {differs}. --nearest-tokenizer "
            "writes the most similar one, with which llama.cpp tokenizes some texts differently; Galley "
            "uses the original, which is written as well"
        )
    if differs:
        notes += (f"llama.cpp tokenizes some texts differently: {differs}",)
    metadata: Metadata = {"general.architecture": architecture, "general.type": "model"}
    metadata |= {"general.name": name, "general.quantization_version": 2, **sizes}
    metadata |= vocabulary.metadata
    metadata |= _ends(model, vocabulary.metadata)
    metadata |= _sampling(model.checkpoint.defaults)
    templates, _ = read_templates(folder)
    for role, source in templates.items():
        metadata[GGUF_TEMPLATE if role != TOOL_USE else f"{GGUF_TEMPLATE}.{TOOL_USE}"] = source
    return ToGGUF(metadata, factors, notes)


def write(model: Model, made: ToGGUF, out: Path) -> None:
    """Write the file, atomically; one tensor at a time is in memory.

    Raises:
        UnsupportedModel: a tensor has values that no GGUF type holds exactly.
        OSError: the file cannot be written.
    """
    receipt = model.checkpoint.config.get(QUANTIZED_KEY) or {}
    metadata = {f"galley.quantize.{key}": receipt[key] for key in RECEIPT if key in receipt}
    tensors = [*_tensors(model, str(made.metadata["general.architecture"]))]
    if made.factors is not None:
        raw = made.factors.view(np.uint8)
        tensors.append(Outgoing(ROPE_FACTORS, "F32", made.factors.shape, lambda: raw))
    write_gguf(out, {**made.metadata, **metadata}, tensors)


def read_dense_model(folder: Path) -> Model:
    """Read the model in a folder, to be written as it is.

    Raises:
        ModelError: the checkpoint cannot be used.
    """
    return read_model(EngineSettings(), folder)


def check_family(model: Model) -> None:
    """Raise UnsupportedModel if the model's family has no GGUF export."""
    family = model.checkpoint.config.get("model_type")
    if family not in ARCHITECTURES:
        raise UnsupportedModel(
            f"model_type {family} cannot be written as GGUF; supported: {', '.join(ARCHITECTURES)}"
        )


def _check_biases(model: Model, architecture: str) -> None:
    for name in model.program.shapes:
        role = name.removesuffix("_proj.bias").rpartition(".")[2]
        if name.endswith("_proj.bias") and role not in _BIASES[architecture]:
            raise UnsupportedModel(
                f"tensor {name}: llama.cpp's {architecture} does not support this bias"
            )


def _tensors(model: Model, architecture: str) -> Iterator[Outgoing]:
    weights, program = model.weights, model.program
    heads = {
        "num_attention_heads": _rows(model, "q") // program.kv[0].key_dim,
        "num_key_value_heads": program.kv[0].kv_heads,
    }
    for name in program.shapes:
        stored = gguf_name(name)
        if stored is None:
            raise UnsupportedModel(f"tensor {name} has no equivalent in GGUF files")
        info = weights.info(name)
        field = permuted_heads(stored) if architecture == "llama" else None
        data: Callable[[], Bytes] = partial(_bytes, weights, name, heads[field] if field else 0)
        yield Outgoing(stored, type_of(name, info), info.shape, data)


def _rows(model: Model, role: str) -> int:
    return model.program.shapes[f"model.layers.0.self_attn.{role}_proj.weight"][0]


def _bytes(weights: Weights, name: str, heads: int) -> Bytes:
    rows = packed(weights[name])
    made: Bytes = permuted(rows, heads) if heads else rows
    return made


def _ends(model: Model, vocabulary: Metadata) -> Metadata:
    """Return the checkpoint's ids that end an answer, for which a file has three keys.

    llama.cpp also ends an answer at tokens with certain texts, whatever the file lists.
    """
    ids = model.checkpoint.eos_token_ids
    texts: Any = vocabulary["tokenizer.ggml.tokens"]
    known = vocabulary.get("tokenizer.ggml.eos_token_id")
    if not ids:
        return {}
    first = known if known in ids else ids[0]
    others = [token for token in ids if token != first and texts[token] not in END_TEXTS]
    if len(others) > 2:
        raise UnsupportedModel(
            f"eos_token_id has {len(ids)} tokens, GGUF files have keys for three"
        )
    keys = ("eos", "eot", "eom")
    return {
        f"tokenizer.ggml.{key}_token_id": token
        for key, token in zip(keys, (first, *others), strict=False)
    }


def _sampling(defaults: SamplingDefaults) -> Metadata:
    neutral = SamplingDefaults()
    return {
        f"general.sampling.{key}": getattr(defaults, field)
        for field, key in SAMPLING.items()
        if getattr(defaults, field) != getattr(neutral, field)
    }
