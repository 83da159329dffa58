"""Differences between the architectures of GGUF files: tensors, keys, and properties implied by the name.

A file contains less than ``config.json`` does. llama.cpp has an architecture's remaining properties in its
sources (``src/models``), not in the file, so they are listed here as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BIASES: Final = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the files of one architecture represent ``config.json`` and its tensors.

    Attributes:
        model_type: value in ``config.json``.
        names: role of a layer's tensor in the file -> in the checkpoint, where it differs from most
            families'. An asterisk is the number of an expert: the file has those of all in one tensor.
        keys: field of ``config.json`` -> key, in addition to those that all families have.
        defaults: values of fields that no key specifies, or whose key is missing or 0.
        flags: fields that are true if there is such a tensor.
        permuted: whether rows of q and k are; see :func:`galley.formats.gguf_names.permuted`.
        partial: whether only some of a head's columns may be rotated.
        rope: parameters of the rotation that no key specifies.
        period: every ``period``-th layer has no window; 0: the file's window applies to all layers.
        windowed: ``model_type`` of files with a window, if it differs.
        local_theta: base of the rotation of layers with a window, which is not scaled there; 0: that of the
            others; None: all layers are rotated alike.
        scaled_by_width: number of layers of the model size whose queries are scaled by the hidden size per
            head; other sizes use a head's columns. None: ``query_pre_attn_scalar`` is not used.
        required: key -> the only value that is supported, if the key is present.
    """

    model_type: str
    names: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=lambda: BIASES)
    permuted: bool = False
    partial: bool = False
    rope: Mapping[str, Any] = field(default_factory=dict)
    period: int = 0
    windowed: str = ""
    local_theta: float | None = None
    scaled_by_width: int | None = None
    required: Mapping[str, Any] = field(default_factory=dict)


def _stacked(block: str, gate: str, up: str, down: str) -> dict[str, str]:
    """Return the names of the experts' tensors."""
    parts = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
    return {name: f"{block}.experts.*.{part}" for name, part in parts.items()}


_WINDOW: Final = {"sliding_window": "attention.sliding_window"}
_PROJECTIONS: Final = ("gate_proj", "up_proj", "down_proj")
_CHOSEN: Final = {"num_experts_per_tok": "expert_used_count"}
_QWEN_EXPERTS: Final = {"ffn_gate_inp": "mlp.gate", **_stacked("mlp", *_PROJECTIONS)}
_QWEN_KEYS: Final = {
    "num_experts": "expert_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
    **_CHOSEN,
}
_SANDWICH: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA: Final = {"hidden_act": "gelu_pytorch_tanh", "norm_offset_in_weights": True}

MIXTRAL: Final = Family(
    model_type="mixtral",
    names={
        "ffn_gate_inp": "block_sparse_moe.gate",
        **_stacked("block_sparse_moe", "w1", "w3", "w2"),
    },
    keys={**_WINDOW, "num_local_experts": "expert_count", **_CHOSEN},
    permuted=True,
)
"""Family of files with architecture llama and experts."""

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(model_type="llama", keys=_WINDOW, permuted=True, windowed="mistral"),
    "qwen2": Family(model_type="qwen2", flags={"mlp_bias": BIASES["mlp_bias"]}),
    "qwen3": Family(model_type="qwen3"),
    "qwen2moe": Family(
        model_type="qwen2_moe",
        names={
            **_QWEN_EXPERTS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            **{f"ffn_{p}_shexp": f"mlp.shared_expert.{p}_proj" for p in ("gate", "up", "down")},
        },
        keys={**_QWEN_KEYS, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        defaults={"norm_topk_prob": False},
        flags={},
    ),
    "qwen3moe": Family(
        model_type="qwen3_moe",
        names=_QWEN_EXPERTS,
        keys=_QWEN_KEYS,
        defaults={"norm_topk_prob": True},
    ),
    "olmoe": Family(
        model_type="olmoe",
        names=_QWEN_EXPERTS,
        keys={"num_experts": "expert_count", "norm_topk_prob": "expert_weights_norm", **_CHOSEN},
        defaults={"norm_topk_prob": False},
    ),
    "gemma2": Family(
        model_type="gemma2",
        names=_SANDWICH,
        keys={
            **_WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        defaults={**_GEMMA, "sliding_window": 4096},
        period=2,
        scaled_by_width=46,
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        names=_SANDWICH,
        keys={**_WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        defaults={**_GEMMA, "sliding_window": None},
        period=6,
        local_theta=10000.0,
        scaled_by_width=62,
    ),
    "phi3": Family(
        model_type="phi3",
        names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        keys=_WINDOW,
        partial=True,
    ),
    "gpt-oss": Family(
        model_type="gpt_oss",
        names={
            "attn_sinks": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
            **_stacked("mlp", *_PROJECTIONS),
        },
        keys={
            **_WINDOW,
            "num_local_experts": "expert_count",
            "intermediate_size": "expert_feed_forward_length",
            **_CHOSEN,
        },
        flags={"attention_bias": BIASES["attention_bias"]},
        # llama.cpp rounds YaRN's ramp to whole columns; the model does not.
        rope={"truncate": False},
        period=2,
    ),
    "granite": Family(
        model_type="granite",
        keys={
            "embedding_multiplier": "embedding_scale",
            "attention_multiplier": "attention.scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        defaults={"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0},
        permuted=True,
        required={"rope.scaling.finetuned": True},  # otherwise llama.cpp applies no rotation
    ),
    "smollm3": Family(model_type="smollm3", defaults={"no_rope_layer_interval": 4}, permuted=True),
    "olmo2": Family(
        model_type="olmo2",
        names={name: _SANDWICH[name] for name in ("post_attention_norm", "post_ffw_norm")},
        keys=_WINDOW,
        period=4,
        windowed="olmo3",
        local_theta=0.0,
    ),
    "command-r": Family(
        model_type="cohere",
        keys={"layer_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale"},
        defaults={"logit_scale": 1.0},
        flags={**BIASES, "use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    "cohere2": Family(
        model_type="cohere2",
        keys={
            **_WINDOW,
            "layer_norm_eps": "attention.layer_norm_epsilon",
            "logit_scale": "logit_scale",
        },
        defaults={"logit_scale": 1.0, "sliding_window": 4096},
        period=4,
    ),
    "starcoder2": Family(
        model_type="starcoder2",
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        keys={"norm_epsilon": "attention.layer_norm_epsilon"},
        defaults={"hidden_act": "gelu_pytorch_tanh"},
        flags={"use_bias": BIASES["attention_bias"]},
    ),
    "glm4": Family(
        model_type="glm4",
        names={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        partial=True,
    ),
}
"""``general.architecture`` -> its family. Mistral's models use the architecture llama."""
