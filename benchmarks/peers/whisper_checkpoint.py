"""Write random checkpoints of Whisper's public shapes, in the form that transformers and CTranslate2 read.

    python -m benchmarks.peers.whisper_checkpoint whisper-base FOLDER

Speed does not depend on the values, so no weights are downloaded.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, models

from benchmarks.peers.speech import EOS
from galley.models.registry import build_program

COMMON: Final[dict[str, Any]] = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "activation_function": "gelu",
    "is_encoder_decoder": True,
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "decoder_start_token_id": EOS + 1,
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "torch_dtype": "float32",
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "whisper-base": {
        "d_model": 512,
        "encoder_layers": 6,
        "encoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_layers": 6,
        "decoder_attention_heads": 8,
        "decoder_ffn_dim": 2048,
    },
    # A tiny shape for trying out the harness.
    "whisper-tiny": {
        "d_model": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 256,
        "decoder_layers": 2,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 256,
    },
}
_LANGUAGES: Final = 99
_STANDARD_DEVIATION: Final = 0.02


def write_whisper(folder: Path, shape: str, *, seed: int = 0) -> None:
    """Write config.json, generation_config.json, tokenizer files and float32 ``model.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = COMMON | SHAPES[shape]
    random = np.random.default_rng(seed)
    tensors = {}
    for name, dimensions in build_program(config).all_shapes.items():
        if len(dimensions) == 1:
            value = 1.0 if name.endswith("weight") else 0.0
            tensors[name] = np.full(dimensions, value, np.float32)
        else:
            values = random.standard_normal(dimensions, np.float32)
            tensors[name] = values * np.float32(_STANDARD_DEVIATION)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    _write_json(folder / "generation_config.json", _generation())
    # Written last: a folder that has it is complete.
    _write_json(folder / "config.json", config)


def _generation() -> dict[str, Any]:
    """Return the ids used by every multilingual checkpoint up to large-v2."""
    tasks = EOS + 2 + _LANGUAGES
    return {
        "eos_token_id": EOS,
        "decoder_start_token_id": EOS + 1,
        "lang_to_id": {token: EOS + 2 + i for i, token in enumerate(_languages())},
        "task_to_id": {"translate": tasks, "transcribe": tasks + 1},
        "prev_sot_token_id": tasks + 3,
        "no_timestamps_token_id": tasks + 5,
        "max_initial_timestamp_index": 50,
        "suppress_tokens": [],
        "begin_suppress_tokens": [220, EOS],
        "alignment_heads": [[1, 0]],
    }


def _languages() -> list[str]:
    return ["<|en|>", *(f"<|l{i}|>" for i in range(1, _LANGUAGES))]


def _write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of made-up words, then Whisper's special tokens without the timestamps."""
    special = ["<|endoftext|>", "<|startoftranscript|>", *_languages()]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    special += ["<|nospeech|>", "<|notimestamps|>"]
    words = {f"w{i}": i for i in range(EOS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"},
    )


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Write one checkpoint."""
    parser = argparse.ArgumentParser(description="Write a random checkpoint of a Whisper shape.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    write_whisper(arguments.folder, arguments.shape)


if __name__ == "__main__":
    main()
