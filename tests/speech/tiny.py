"""Tiny random Whisper checkpoints with their own tokenizer, written by transformers."""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS: Final = [
    "Hello, this is Maria Kowalska. My broadband keeps dropping every evening.",
    "What is your account number, please? It is four eight two one three nine zero seven.",
    "你好。Guten Tag, ich möchte meinen Vertrag kündigen.",
] * 4
LANGUAGES: Final = ("en", "de", "zh")
CONTROL: Final = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{language}|>" for language in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]
"""Control tokens in the order of Whisper's vocabulary, in which timestamps come last."""
INPUT_SECONDS: Final = 4
MELS: Final = 16
TEXT_TOKENS: Final = 320
TIMES: Final = [f"<|{step * 0.02:.2f}|>" for step in range(INPUT_SECONDS * 50 + 1)]


def make_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer, followed by control tokens and timestamps."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    assert inner.get_vocab_size() == TEXT_TOKENS
    inner.add_special_tokens(CONTROL)
    # As in the hub's checkpoints, where timestamps are added tokens but not special ones.
    inner.add_tokens(TIMES)
    return inner


def token_id(name: str) -> int:
    """Return the id of a control token or a timestamp."""
    return TEXT_TOKENS + [*CONTROL, *TIMES].index(name)


def generation_config() -> dict[str, Any]:
    """Return the decoding settings of the hub's checkpoints."""
    return {
        "decoder_start_token_id": token_id("<|startoftranscript|>"),
        "eos_token_id": token_id("<|endoftext|>"),
        "prev_sot_token_id": token_id("<|startofprev|>"),
        "no_timestamps_token_id": token_id("<|notimestamps|>"),
        "lang_to_id": {f"<|{language}|>": token_id(f"<|{language}|>") for language in LANGUAGES},
        "task_to_id": {task: token_id(f"<|{task}|>") for task in ("translate", "transcribe")},
        "suppress_tokens": [
            token_id(name) for name in CONTROL if name not in ("<|endoftext|>", "<|notimestamps|>")
        ],
        "begin_suppress_tokens": [token_id("<|endoftext|>")],
        "max_initial_timestamp_index": 50,
        "alignment_heads": [[0, 1], [1, 2]],
        "is_multilingual": True,
    }


def write_text_side(folder: Path) -> Path:
    """Write the tokenizer and its related files, without weights."""
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    (folder / "generation_config.json").write_text(json.dumps(generation_config()))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"feature_size": MELS, "chunk_length": INPUT_SECONDS, "sampling_rate": 16_000})
    )
    return folder


def make_whisper(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a whole checkpoint. Weights are large enough that greedy text is not one repeated token.

    ``changes``: of the configuration.
    """
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": TEXT_TOKENS + len(CONTROL) + len(TIMES),
        "num_mel_bins": MELS,
        "d_model": 48,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "max_source_positions": INPUT_SECONDS * 50,
        "max_target_positions": 64,
        "init_std": 0.25,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|endoftext|>"),
        "pad_token_id": token_id("<|endoftext|>"),
        "decoder_start_token_id": token_id("<|startoftranscript|>"),
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    config = WhisperConfig(**{**shape, **changes})
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    return write_text_side(folder)
