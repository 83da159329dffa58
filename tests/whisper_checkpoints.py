"""Tiny random Whisper checkpoints, written by transformers: the outside truth that tests compare with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": 320,
    "num_mel_bins": 80,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_source_positions": 60,
    "max_target_positions": 48,
    "decoder_start_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "init_std": 0.1,
}
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "whisper": {},
    "whisper-odd": {
        "num_mel_bins": 128,
        "d_model": 70,
        "encoder_layers": 3,
        "encoder_attention_heads": 5,
        "encoder_ffn_dim": 131,
        "decoder_attention_heads": 7,
        "decoder_ffn_dim": 77,
        "max_source_positions": 41,
        "tie_word_embeddings": False,
    },
}
"""Both numbers of mel bins; widths that fill no register; name -> what differs."""


def make_whisper(folder: Path, variant: str = "whisper", **changes: Any) -> Path:
    """Write a random model of a known variant. Biases and norms are random, too."""
    torch.manual_seed(0)
    config = WhisperConfig(**{**SHAPE, **VARIANTS[variant], **changes})
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "layer_norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder
