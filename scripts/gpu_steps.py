"""Steps of a few shapes on torch's ``meta`` device, whose launches ``gpu_report`` compiles."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from galley.formats.weights import MXFP4_KIND, FlatWeights, WeightKind, mxfp4_kind
from galley.graph.adapters import with_adapters
from galley.graph.passes import run_passes
from galley.graph.program import Op, Program
from galley.lab.random_weights import RandomWeights
from galley.models.registry import build_program
from galley.ops.batch import Batch, CrossContext, EncoderBatch
from galley.ops.triton import speech_steps
from galley.ops.triton.adapters import Adapters
from galley.ops.triton.attention import Cache, EncoderAttention, key_stride, rows_of_tiles
from galley.ops.triton.parts import Parts, Run
from galley.ops.triton.sampler import Draws
from galley.ops.triton.sizes import CACHES, KV_BITS
from galley.ops.triton.speech import Speech
from galley.ops.triton.step_batch import Staging, shape_of, tiles_of
from galley.ops.triton.steps import Steps
from galley.ops.triton.tiles import Device

SHAPE: Final[dict[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}

MIXTURE: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3",
    "vocab_size": 2048,
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 0,
    "n_routed_experts": 32,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
"""Experts and latent attention; each layer has adapters, too."""

WHISPER: Final[dict[str, Any]] = {
    "model_type": "whisper",
    "vocab_size": 2048,
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 1,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_layers": 1,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
"""A speech model; its windows are encoded in the same step."""

SHAPES: Final = {"dense": SHAPE, "mixture": MIXTURE, "speech": WHISPER}

KINDS: Final = {
    "bf16": WeightKind("bf16"),
    "fp8": WeightKind("fp8"),
    "int8": WeightKind("int8", 128, "BF16"),
    "int4": WeightKind("int4", 128, "BF16"),
    "mxfp4": mxfp4_kind(2048),
}


class Work(NamedTuple):
    """A step: sequences that decode one token each, tokens of a prompt, and the type of the cache."""

    sequences: int
    prompt: int = 0
    kv_dtype: str = "bfloat16"

    @classmethod
    def parse(cls, text: str) -> "Work":
        """Read ``8``, ``0+512`` or ``8+512/int8``: sequences, a prompt's tokens, the cache's type."""
        rows, _, kv_dtype = text.partition("/")
        sequences, _, prompt = rows.partition("+")
        return cls(int(sequences), int(prompt or 0), kv_dtype or "bfloat16")

    def __str__(self) -> str:
        decoding = f"{self.sequences} decoding" if self.sequences else ""
        prompt = f"prompt of {self.prompt}" if self.prompt else ""
        kv = "" if self.kv_dtype == "bfloat16" else f", {self.kv_dtype} cache"
        return " + ".join(filter(None, (decoding, prompt))) + kv


def run_step(
    kind: str, work: Work, capability: int, layers: int, shape: str, context: int = 1000
) -> None:
    """Launch all kernels of a step, and of its draws, for a device of this compute capability."""
    program = build_program({"num_hidden_layers": layers, **SHAPES[shape]})
    adapted = shape == "mixture"
    if adapted:
        program = with_adapters(program)
    wanted = KINDS[kind]
    dense = WeightKind("bf16")
    kinds = {name: dense if "embed" in name else wanted for name in program.matrices}
    program = run_passes(program.with_kinds(kinds))
    if program.encoder is not None:
        program = replace(program, encoder=run_passes(program.encoder))
    device = Device("meta", capability)
    adapters = Adapters(program, 4, 16, torch.bfloat16, device) if adapted else None
    coded = kinds if wanted.is_integer or wanted.name == MXFP4_KIND else {}
    weights = FlatWeights(RandomWeights(program, coded), tuple(program.all_shapes))
    bits = KV_BITS.get(work.kv_dtype, 0)
    parts = Parts(program, weights, torch.bfloat16, device, kv_bits=bits, adapters=adapters)
    steps = Steps(parts)
    for kv in program.kv:
        size = (8, kv.kv_heads, 16, key_stride(kv, bits))
        keys = torch.empty(size, dtype=CACHES[work.kv_dtype], device="meta")
        scales = torch.empty(
            size[:3], dtype=torch.int32 if bits == 4 else torch.float32, device="meta"
        )
        factors = torch.empty((kv.kv_heads, kv.key_dim), device="meta")
        parts.caches.append(Cache(keys, keys, scales, scales, factors))
    batch = _batch(work, context, adapted=adapted, crossed=program.encoder is not None)
    count = len(batch.wanted)
    single, tiles = tiles_of(batch, rows_of_tiles(program, device))
    staging = Staging(shape_of(batch, single, tiles), 1, device)
    logits = steps.run(staging.batch)
    Draws(count, logits.shape[1], device).launch(logits, greedy=False, sort=adapted)
    if program.encoder is not None:
        _encode(program, parts)
    if adapted:
        attrs = {"heads": 16, "kv_heads": 16, "key_dim": 64, "value_dim": 64, "scale": 0.125}
        attrs |= {"before": -1, "after": -1, "exact": False}
        op = Op("encoder_attention", (0, 1, 2), (3,), (1024,), {}, attrs)
        rows_of = torch.empty((len(batch.tokens), 1024), dtype=torch.bfloat16, device="meta")
        EncoderAttention(op, device)(staging.batch, rows_of, rows_of, rows_of, rows_of)


def _encode(program: Program, parts: Parts) -> None:
    """Encode a window, and compute the weights of two heads that align a row."""
    window = EncoderBatch(np.zeros((3000, 128), np.float32), np.array([0, 3000]), (np.arange(94),))
    Speech(program, parts).encode(window, 1 << 31)
    attrs = {
        "layer": 0,
        "heads": 20,
        "kv_heads": 20,
        "key_dim": 64,
        "value_dim": 64,
        "scale": 0.125,
    }
    op = Op("cross_weights", (0,), (), (), {}, {**attrs, "chosen": (1, 3), "first": 0})
    batch = _batch(Work(1), 100, adapted=False, crossed=True)
    single, tiles = tiles_of(batch, 1)
    staged = Staging(shape_of(batch, single, tiles), 1, parts.device).batch
    weights = torch.empty((1, 2, 1500), device="meta")
    query = torch.empty((1, 1280), dtype=torch.bfloat16, device="meta")
    speech_steps.cross_weights(parts, op)(Run(staged, None, {0: query}, attention=weights))


def _batch(work: Work, context: int, *, adapted: bool, crossed: bool = False) -> Batch:
    """Return a batch whose decoding sequences have ``context`` tokens, and whose prompt begins."""
    starts = [*range(work.sequences + 1), *([work.sequences + work.prompt] if work.prompt else [])]
    count, rows = len(starts) - 1, starts[-1]
    positions = [np.full(work.sequences, context), np.arange(work.prompt)]
    return Batch(
        tokens=np.zeros(rows, np.int64),
        positions=np.concatenate(positions),
        starts=np.array(starts),
        tables=(np.arange(max(work.prompt, context) // 16 + 1),) * count,
        wanted=np.array(starts[1:]) - 1,
        adapters=np.zeros(count, np.int64) if adapted else None,
        cross=CrossContext((np.arange(94),) * count, np.full(count, 1500)) if crossed else None,
    )
