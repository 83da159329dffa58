"""The adapters in `peft/`, and the tokens of their logits."""

from typing import Any, Final

IDS: Final = [5, 40, 41, 30, 7, 7, 19, 25, 3, 31, 12, 8, 2, 16]

ADAPTERS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
    "all-linear": {
        "r": 6,
        "lora_alpha": 9,
        "lora_dropout": 0.1,
        "target_modules": "all-linear",
        "use_rslora": True,
        "rank_pattern": {"o_proj": 3, "^model.layers.1.mlp.down_proj": 8},
        "alpha_pattern": {"down_proj": 20},
    },
    "mica": {"r": 2, "init_lora_weights": "mica", "target_modules": ["k_proj", "up_proj"]},
    "one-layer": {
        "r": 3,
        "target_modules": ["gate_proj", "o_proj"],
        "exclude_modules": ["k_proj"],
        "layers_to_transform": [1],
        "layers_pattern": "layers",
    },
}
"""Name of a folder -> its settings other than PEFT's defaults; all are served."""

_QUERIES: Final[dict[str, Any]] = {"r": 2, "target_modules": ["q_proj"]}

REFUSED: Final[dict[str, dict[str, Any]]] = {
    "use_dora": {**_QUERIES, "use_dora": True},
    "bias": {**_QUERIES, "bias": "lora_only"},
    "lora_bias": {**_QUERIES, "lora_bias": True},
    "modules_to_save": {**_QUERIES, "modules_to_save": ["lm_head"]},
    "trainable_token_indices": {**_QUERIES, "trainable_token_indices": [1, 2]},
    "alora_invocation_tokens": {**_QUERIES, "alora_invocation_tokens": [3]},
    "layer_replication": {**_QUERIES, "layer_replication": [[0, 2], [1, 2]]},
    "init_lora_weights": {**_QUERIES, "init_lora_weights": "olora"},
}
"""Unsupported settings, by the field that requests them."""
