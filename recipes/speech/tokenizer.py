"""The speech model's tokenizer: byte-level BPE, then Whisper's special tokens in Whisper's order.

Peers find tokens by name (`<|startoftranscript|>`) and by position: `<|nospeech|>`, then
`<|notimestamps|>`, then `<|0.00|>` and every 20 ms after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers

from ..assistant.tokenizer import byte_level_bpe, token_id

END: Final = "<|endoftext|>"
START: Final = "<|startoftranscript|>"
LANGUAGE: Final = "<|en|>"
TASK: Final = "<|transcribe|>"
PREVIOUS: Final = "<|startofprev|>"
NO_SPEECH: Final = "<|nospeech|>"
NO_TIMESTAMPS: Final = "<|notimestamps|>"
SPECIAL: Final = (
    END, START, LANGUAGE, "<|translate|>", TASK, "<|startoflm|>", PREVIOUS, NO_SPEECH, NO_TIMESTAMPS,
)  # fmt: skip
TIME_STEP: Final = 0.02
"""Seconds from one timestamp to the next."""

_SPLIT: Final = r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s"
# OpenAI's and faster-whisper's list of non-speech tokens starts with the first token of these two.
# They must be separate tokens, or that list would contain the space.
_NO_SPEECH_SYMBOLS: Final = (" -", " '")


def train_tokenizer(texts: Iterable[str], text_tokens: int, window_seconds: float) -> Tokenizer:
    """Train on transcripts. Every byte has a token, so any text survives a round trip.

    Raises:
        ValueError: they have too few different words for this vocabulary size.
    """
    tokenizer = byte_level_bpe(_SPLIT)
    trainer = trainers.BpeTrainer(
        vocab_size=text_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_symbols(texts), trainer)
    if tokenizer.get_vocab_size() < text_tokens:
        found = tokenizer.get_vocab_size()
        raise ValueError(
            f"the texts have {found} tokens, {text_tokens} are wanted: give more texts"
        )
    steps = round(window_seconds / TIME_STEP) + 1
    times = [f"<|{step * TIME_STEP:.2f}|>" for step in range(steps)]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False) for name in times])
    return tokenizer


def _with_symbols(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield text
        yield from _NO_SPEECH_SYMBOLS


def time_id(tokenizer: Tokenizer, seconds: float) -> int:
    """Return the id of the timestamp nearest to a time."""
    return token_id(tokenizer, "<|0.00|>") + round(seconds / TIME_STEP)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "unk_token": END,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
