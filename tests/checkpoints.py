"""Tiny random checkpoints, written by transformers: the independent reference for tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

VOCAB_SIZE = 320
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
EOS = 0

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.25,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-mha-tied": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "llama-mqa-odd": {
        "model_type": "llama",
        "hidden_size": 70,
        "intermediate_size": 131,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
    },
    "llama-head-dim-bias": {
        "model_type": "llama",
        "head_dim": 34,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama-linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0},
    },
    "llama-llama3": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 5000.0,
        },
    },
    "llama-yarn": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "rope_theta": 10000.0,
        },
    },
    "mistral-window": {"model_type": "mistral", "sliding_window": 24, "head_dim": 16},
    "ministral": {
        "model_type": "ministral",
        "head_dim": 14,
        "sliding_window": 24,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "mistral-full": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 20},
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 14,
        "query_pre_attn_scalar": 10,
        "sliding_window": 20,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 18,
        "query_pre_attn_scalar": 24,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "tie_word_embeddings": False,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 30, "num_key_value_heads": 4},
    "phi3-longrope": {
        "model_type": "phi3",
        "original_max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 256,
            "short_factor": [1.0, 1.3, 2.5],
            "long_factor": [1.0, 4.0, 9.0],
        },
    },
    "granite": {
        "model_type": "granite",
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.5,
    },
    "granite-hybrid": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "intermediate_size": 23,
        "shared_intermediate_size": 37,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "mamba_n_heads": 4,
        "mamba_d_state": 19,
        "mamba_d_conv": 4,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.5,
    },
    "granite-hybrid-dense": {
        "model_type": "granitemoehybrid",
        "hidden_size": 70,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "layer_types": ["full_attention", "linear_attention"],
        "shared_intermediate_size": 131,
        "num_local_experts": 0,
        "mamba_n_heads": 2,
        "mamba_d_state": 33,
        "mamba_d_conv": 3,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
    },
    "qwen3-next": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 24,
        "initializer_range": 0.15,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 10,
        "linear_value_head_dim": 19,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "mlp_only_layers": [2],
        "moe_intermediate_size": 23,
        "shared_expert_intermediate_size": 29,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    },
    "qwen3-next-dense": {
        "model_type": "qwen3_next",
        "hidden_size": 70,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "layer_types": ["full_attention", "linear_attention"],
        "head_dim": 16,
        "initializer_range": 0.15,
        "linear_conv_kernel_dim": 2,
        "linear_key_head_dim": 33,
        "linear_value_head_dim": 70,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "mlp_only_layers": [0, 1],
        "partial_rotary_factor": 0.5,
    },
    "olmo2": {
        "model_type": "olmo2",
        "hidden_size": 70,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
    },
    "glm4-moe": {
        "model_type": "glm4_moe",
        "first_k_dense_replace": 1,
        "n_routed_experts": 12,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "moe_intermediate_size": 23,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
    },
    "deepseek-v2": {
        "model_type": "deepseek_v2",
        "hidden_size": 68,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 26,
        "qk_nope_head_dim": 18,
        "qk_rope_head_dim": 10,
        "v_head_dim": 13,
        "first_k_dense_replace": 1,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 21,
    },
    "deepseek-v2-groups": {
        "model_type": "deepseek_v2",
        "hidden_size": 64,
        "num_key_value_heads": 4,
        "q_lora_rank": 33,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "attention_bias": True,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 0,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 4.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 0.707,
            "mscale_all_dim": 0.5,
        },
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "hidden_size": 64,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 6,
        "v_head_dim": 18,
        "first_k_dense_replace": 1,
        "n_routed_experts": 12,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 23,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        "head_dim": 12,
        "intermediate_size": 37,
        "num_local_experts": 5,
        "num_experts_per_tok": 5,
        "sliding_window": 20,
        "swiglu_limit": 1.5,
    },
    "llama4": {
        "model_type": "llama4_text",
        "head_dim": 14,
        "intermediate_size": 37,
        "intermediate_size_mlp": 53,
        "num_hidden_layers": 4,
        "num_local_experts": 5,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 0, 1, 1],
        "attention_chunk_size": 44,
        "floor_scale": 24,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 5000.0,
        },
    },
    "llama4-plain": {
        "model_type": "llama4_text",
        "head_dim": 12,
        "intermediate_size": 37,
        "intermediate_size_mlp": 53,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "use_qk_norm": False,
        "attention_bias": True,
        "attention_chunk_size": 16,
        "attn_temperature_tuning": False,
        "no_rope_layers": [0, 1],
    },
    "mixtral": {
        "model_type": "mixtral",
        "num_local_experts": 5,
        "intermediate_size": 51,
        "sliding_window": 24,
    },
    "qwen2-moe": {
        "model_type": "qwen2_moe",
        "num_hidden_layers": 3,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 33,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "head_dim": 20,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    "olmoe": {
        "model_type": "olmoe",
        "hidden_size": 70,
        "intermediate_size": 19,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "num_experts": 7,
        "num_experts_per_tok": 7,
    },
    "glm": {"model_type": "glm", "head_dim": 20, "partial_rotary_factor": 0.5},
    "glm4": {
        "model_type": "glm4",
        "num_key_value_heads": 1,
        "head_dim": 34,
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000.0,
            "partial_rotary_factor": 1.0,
        },
    },
    "cohere": {
        "model_type": "cohere",
        "hidden_size": 70,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "use_qk_norm": True,
        "logit_scale": 0.5,
    },
    "cohere2": {
        "model_type": "cohere2",
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 20,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 24, "num_hidden_layers": 3},
    "starcoder2-odd": {
        "model_type": "starcoder2",
        "hidden_size": 70,
        "intermediate_size": 131,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "use_bias": False,
        "tie_word_embeddings": False,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        "hidden_size": 64,
        "num_key_value_heads": 4,
        "initializer_range": 0.5,
    },
    "gpt_neox-sequential": {
        "model_type": "gpt_neox",
        "hidden_size": 70,
        "intermediate_size": 131,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "initializer_range": 0.5,
        "hidden_act": "gelu_fast",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000.0,
            "partial_rotary_factor": 0.6,
        },
        "use_parallel_residual": False,
    },
    "olmo3": {
        "model_type": "olmo3",
        "num_key_value_heads": 1,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 20,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    "smollm3": {
        "model_type": "smollm3",
        "no_rope_layers": [1, 0],
        "use_sliding_window": True,
        "sliding_window": 24,
        "mlp_bias": True,
    },
}
"""Every family, and the shapes and rope scalings that differ; name -> config."""

LATENT = frozenset({"deepseek-v2", "deepseek-v2-groups", "deepseek-v3"})
"""Variants whose keys and values are kept as latents."""

ROUTED = (
    frozenset(
        {
            "granite-hybrid",
            "qwen3-next",
            "glm4-moe",
            "llama4",
            "llama4-plain",
            "mixtral",
            "qwen2-moe",
            "qwen3-moe",
        }
    )
    | LATENT
)
"""Variants in which a rounding may send a row to another expert; in the others it goes to all."""

RECURRENT = frozenset({"granite-hybrid", "granite-hybrid-dense", "qwen3-next", "qwen3-next-dense"})
"""Variants whose layers keep states, most of them."""

MIXTURES = ROUTED | {"olmoe", "gpt-oss"}
"""Variants with experts."""

KNOWN_OPS = frozenset(
    {"gemma3", "phi3", "granite", "olmo2", "smollm3", "glm", "glm4", "cohere2", "starcoder2"}
    | {"olmo3", "starcoder2-odd", "gpt_neox", "gpt_neox-sequential"}
    | MIXTURES
)
"""Variants of ops that others have, too: the largest matrices of tests take a few of their combinations."""


def random_ids(seed: int, length: int) -> list[int]:
    """Return token ids of these checkpoints, none of them special."""
    ids: list[int] = np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).tolist()
    return ids


def _config(variant: str, **changes: Any) -> Any:
    return AutoConfig.for_model(**{**SHAPE, **VARIANTS[variant], **changes})


def config_of(variant: str) -> dict[str, Any]:
    """Return the config.json of a variant, for tests that need no weights."""
    config: dict[str, Any] = json.loads(_config(variant).to_json_string())
    return config


def make_checkpoint(
    folder: Path,
    variant: str = "llama",
    *,
    seed: int = 0,
    max_shard_size: str = "5GB",
    generation: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a random model of a known variant, a byte-level BPE tokenizer and a ChatML template.

    Weights are large enough that greedy text is not one repeated token.
    """
    torch.manual_seed(seed)
    config = _config(variant, **changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    make_tokenizer(folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": EOS} if generation is None else generation)
    )
    return folder


def with_outliers(folder: Path, times: float = 200.0) -> Path:
    """Write a model with some normed inputs much larger, and the columns that they meet smaller."""
    make_checkpoint(folder, "llama", hidden_size=64, head_dim=16)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith("layernorm.weight"):
            tensor[::17] *= times
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight")):
            tensor[:, ::17] /= times
        if name.endswith("up_proj.weight"):
            tensor[:, ::17] /= times
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def make_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE of VOCAB_SIZE entries that covers every byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and then the dog sat too"] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL[1:],
        chat_template=CHATML,
    )
    fast.save_pretrained(folder)


EOS_TEXT = 200
"""``<|endoftext|>``; then come ``<|startoftranscript|>``, languages, tasks and, from 210 on, timestamps."""

WHISPER_GENERATION: dict[str, Any] = {
    "eos_token_id": EOS_TEXT,
    "pad_token_id": EOS_TEXT,
    "bos_token_id": EOS_TEXT,
    "decoder_start_token_id": EOS_TEXT + 1,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 202, "<|de|>": 203, "<|fr|>": 204},
    "task_to_id": {"translate": 205, "transcribe": 206},
    "prev_sot_token_id": 207,
    "no_timestamps_token_id": 209,
    "max_initial_timestamp_index": 20,
    "suppress_tokens": [1, 2, 7, 63, 205, 206, 207, 208],
    "begin_suppress_tokens": [5, EOS_TEXT],
    "return_timestamps": False,
}

WHISPER_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "num_mel_bins": 80,
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 88,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 88,
    "max_source_positions": 75,
    "max_target_positions": 96,
    "init_std": 0.15,
    "pad_token_id": EOS_TEXT,
    "bos_token_id": EOS_TEXT,
    "eos_token_id": EOS_TEXT,
    "decoder_start_token_id": EOS_TEXT + 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}

WHISPER_VARIANTS: dict[str, dict[str, Any]] = {
    "whisper": {},
    "whisper-odd-128": {
        "num_mel_bins": 128,
        "d_model": 70,
        "encoder_layers": 3,
        "encoder_attention_heads": 5,
        "encoder_ffn_dim": 77,
        "decoder_layers": 1,
        "decoder_attention_heads": 7,
        "decoder_ffn_dim": 131,
        "max_source_positions": 301,
        "scale_embedding": True,
    },
}
"""Both numbers of mel bins, as many decoder layers as encoder layers and fewer; name -> config."""

ALIGNMENT_HEADS = {
    "whisper": [[0, 1], [1, 0], [1, 3]],
    "whisper-odd-128": [[0, 1], [0, 3]],
}
"""(Decoder layer, head) that each variant names; in the order of layers."""


def make_whisper(folder: Path, variant: str = "whisper", *, seed: int = 0, **changes: Any) -> Path:
    """Write a random speech model of a known variant, its last ids laid out as Whisper's special tokens.

    ``changes`` apply to its config.json.
    """
    torch.manual_seed(seed)
    config = WhisperConfig(**{**WHISPER_SHAPE, **WHISPER_VARIANTS[variant], **changes})
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")) or "embed_positions" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    heads = [
        [layer, head] for layer, head in ALIGNMENT_HEADS[variant] if layer < config.decoder_layers
    ]
    generation = {**WHISPER_GENERATION, "alignment_heads": heads}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder
