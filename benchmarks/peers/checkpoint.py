"""Write random checkpoints of public shapes. Speed does not depend on the values, so none are downloaded.

    python -m benchmarks.peers.checkpoint llama-1b FOLDER

Tensors are written one at a time, so peak memory is the size of the largest one.
"""

import argparse
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.peers.chain import faint, head_of

COMMON: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    # Some peers read the newer spelling, some the older one.
    "rope_theta": 500000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 256,
    "eos_token_id": 257,
}

MIXTURE: Final[dict[str, Any]] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
"""Common fields of the mixtures of experts and of the dense models that they are compared with."""

CHAIN: Final = "-chain"
"""Suffix of the names of shapes whose checkpoints are chain models."""

_SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "llama-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "qwen2-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "mixtral-8x0.35b": {
        **MIXTURE,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": 7168,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    # Half as many layers: OpenVINO's exporter takes 22 GB or more for 3 billion in this many experts.
    "qwen3-moe-64x0.025b": {
        **MIXTURE,
        "num_hidden_layers": 4,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "intermediate_size": 1024,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    # A tiny shape for trying out the harness: it takes a second rather than a minute.
    "tiny": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}
for _shape in ("llama-1b", "tiny"):
    SHAPES[f"{_shape}{CHAIN}"] = {**SHAPES[_shape], "tie_word_embeddings": False}
SHAPES["tiny-mixtral"] = {
    **SHAPES["mixtral-8x0.35b"],
    **{key: SHAPES["tiny"][key] for key in _SIZES},
    "intermediate_size": 256,
    "num_local_experts": 4,
}
SHAPES["tiny-qwen3-moe"] = {
    **SHAPES["qwen3-moe-64x0.025b"],
    **{key: SHAPES["tiny"][key] for key in _SIZES},
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 4,
}
"""Name -> config.json, in addition to COMMON."""

_STANDARD_DEVIATION: Final = np.float32(0.02)
_PERIOD: Final = (1 << 23) - 15
"""Values after which the noise repeats: a prime, so that no two rows or experts are the same."""


def write_checkpoint(
    folder: Path, config: dict[str, Any], *, seed: int = 0, chain: bool = False
) -> None:
    """Write config.json, tokenizer files and ``model.safetensors`` in bfloat16.

    With ``chain``, write a model whose texts are known: see :mod:`benchmarks.peers.chain`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "generation_config.json").write_text('{"eos_token_id": 257}\n')
    _write_tokenizer(folder, config["vocab_size"])
    _write_weights(folder / "model.safetensors", dict(tensors(config)), seed, chain)
    # Written last: a folder that has it is complete.
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_shape(folder: Path, shape: str) -> None:
    """Write the checkpoint of a shape named in :data:`SHAPES`."""
    write_checkpoint(folder, COMMON | SHAPES[shape], chain=shape.endswith(CHAIN))


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor, in order."""
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = (config[f"num_{n}_heads"] * head_dim for n in ("attention", "key_value"))
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (hidden,)
        for part, width in (("q", q), ("k", kv), ("v", kv)):
            yield f"{name}.self_attn.{part}_proj.weight", (width, hidden)
            if config["model_type"] == "qwen2":
                yield f"{name}.self_attn.{part}_proj.bias", (width,)
            if config["model_type"] == "qwen3_moe" and part != "v":
                yield f"{name}.self_attn.{part}_norm.weight", (head_dim,)
        yield f"{name}.self_attn.o_proj.weight", (hidden, q)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
        for part, shape in _feed_forward(config).items():
            yield f"{name}.{part}.weight", shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _feed_forward(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer: dense, or a router and experts under their family's names."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kind = config["model_type"]
    if kind == "mixtral":
        router, names = "block_sparse_moe.gate", ("w1", "w3", "w2")
        experts = "block_sparse_moe.experts"
    elif kind == "qwen3_moe":
        router, names = "mlp.gate", ("gate_proj", "up_proj", "down_proj")
        experts, inner = "mlp.experts", config["moe_intermediate_size"]
    else:
        shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
        return dict(zip(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), shapes, strict=True))
    count = config.get("num_local_experts") or config["num_experts"]
    gate, up, down = names
    made: dict[str, tuple[int, ...]] = {router: (count, hidden)}
    for expert in range(count):
        made[f"{experts}.{expert}.{gate}"] = made[f"{experts}.{expert}.{up}"] = (inner, hidden)
        made[f"{experts}.{expert}.{down}"] = (hidden, inner)
    return made


def _write_weights(path: Path, shapes: dict[str, tuple[int, ...]], seed: int, chain: bool) -> None:
    """Write safetensors: the length of a JSON header, the header, the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = np.random.default_rng(seed).standard_normal(_PERIOD, np.float32) * _STANDARD_DEVIATION
    # The upper half of a float32 is a bfloat16.
    noise = (noise.view(np.uint32) >> 16).astype(np.uint16)
    one = np.ones(1, np.float32).view(np.uint32) >> 16
    place = 0
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            count = int(np.prod(shape))
            if len(shape) == 1:
                file.write(np.repeat(one.astype(np.uint16), count).tobytes())
                continue
            bits = np.resize(np.roll(noise, -place), count)
            if chain and name.endswith(("o_proj.weight", "down_proj.weight")):
                bits = faint(bits)
            if chain and name == "lm_head.weight":
                # The embedding is the first tensor.
                bits = head_of(np.resize(noise, count).reshape(shape))
            file.write(bits.tobytes())
            place = (place + count) % _PERIOD


def _write_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer with a token for each byte, two special ones, and unused words for the rest."""
    special = ["<|begin|>", "<|end|>"]
    named = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    words = [f"\u0120{np.base_repr(i, 36).lower()}" for i in range(len(named), size)]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate([*named, *words])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "model_max_length": COMMON["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Write one checkpoint."""
    parser = argparse.ArgumentParser(description="Write a random checkpoint of a public shape.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    write_shape(arguments.folder, arguments.shape)


if __name__ == "__main__":
    main()
