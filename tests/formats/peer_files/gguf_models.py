"""The models of the GGUF files in `gguf/`, and the tokens of their logits."""

from typing import Any, Final

IDS: Final = [5, 40, 41, 300, 7, 7, 19, 250, 3, 60, 61, 62, 63, 64, 319, 9, 5, 40]
"""Token ids, more than any window."""

SHORT: Final = 10
"""Tokens of the prefix used where all would exceed a LongRoPE model's original training length."""

SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.25,
}

_EXPERTS: Final = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "gemma2": {
        "model_type": "gemma2",
        "num_hidden_layers": 3,
        "head_dim": 12,
        "query_pre_attn_scalar": 12,
        "sliding_window": 5,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "query_pre_attn_scalar": 12,
        "sliding_window": 5,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "phi3": {"model_type": "phi3", "sliding_window": 5},
    "phi3-longrope": {
        "model_type": "phi3",
        "hidden_size": 48,
        "original_max_position_embeddings": 12,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 12,
            "short_factor": [1.0, 1.3, 2.5],
            "long_factor": [1.0, 4.0, 9.0],
        },
    },
    "qwen3moe": {
        "model_type": "qwen3_moe",
        "head_dim": 12,
        "norm_topk_prob": True,
        **_EXPERTS,
    },
    "qwen2moe": {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 28,
        **_EXPERTS,
    },
    "olmoe": {
        "model_type": "olmoe",
        "num_key_value_heads": 4,
        "intermediate_size": 24,
        "num_experts": 5,
        "num_experts_per_tok": 2,
    },
    "mixtral": {
        "model_type": "mixtral",
        "intermediate_size": 24,
        "num_local_experts": 4,
        "sliding_window": None,
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 3,
        "head_dim": 12,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
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
    "granite4": {
        "model_type": "granitemoehybrid",
        "layer_types": ["full_attention", "full_attention"],
        "position_embedding_type": "rope",
        "shared_intermediate_size": 40,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_heads": 4,
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.5,
    },
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5, "use_sliding_window": False},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "num_hidden_layers": 5,
        "num_key_value_heads": 1,
        "sliding_window": 5,
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
    "command-r": {"model_type": "cohere", "logit_scale": 0.5, "use_qk_norm": True},
    "cohere2": {"model_type": "cohere2", "num_hidden_layers": 5, "sliding_window": 5},
    "starcoder2": {
        "model_type": "starcoder2",
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "glm4": {
        "model_type": "glm4",
        "num_key_value_heads": 1,
        "head_dim": 12,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000.0,
            "partial_rotary_factor": 0.5,
        },
    },
}
"""Name of a file -> config.json."""
