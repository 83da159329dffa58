"""Small tokenizers of the kinds found in checkpoints, trained on the spot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from galley.text import tokenizer as text

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and it isn't even tired.",
    "Hello! How are you today?  I'm fine, thanks.\n\nSee you at 10:45 on 2024-05-01.",
    "user assistant system function You are a helpful assistant. [INST] <<SYS>> Sure, naïve café",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))\t# 3",
    "你好 世界。 Привет, мир! مرحبا 😀😀 é",
] * 8

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL_SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
]
BYTE_LEVEL_WORDS = ["<think>", "</think>", "<tool_call>", "    "]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


class Split(NamedTuple):
    """How texts are split before merging pairs: by a pattern, or GPT-2's; after NFC; around digits."""

    pattern: str | None = None
    nfc: bool = False
    ignore_merges: bool = False
    digits: bool = False


SPLITS = {
    "gpt-2": Split(),
    "llama-bpe": Split(LLAMA3_SPLIT, ignore_merges=True),
    "smaug-bpe": Split(LLAMA3_SPLIT),
    "qwen2": Split(LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}"), nfc=True),
    "tekken": Split(TEKKEN_SPLIT, ignore_merges=True),
    "smollm": Split(digits=True),
}
"""By llama.cpp's names."""


def byte_level(folder: Path, *, ignore_merges: bool = False, split: Split | None = None) -> Path:
    """As in Llama 3 and Qwen; Llama 3's ``ignore_merges`` uses whole words from the vocabulary."""
    split = split or Split(LLAMA3_SPLIT, nfc=True, ignore_merges=ignore_merges)
    inner = Tokenizer(models.BPE())
    if split.nfc:
        inner.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), "isolated"))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*steps, words])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=BYTE_LEVEL_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken(word, normalized=False) for word in BYTE_LEVEL_WORDS])
    inner.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", inner.token_to_id("<|begin_of_text|>"))],
    )

    def edit(file: dict[str, Any]) -> None:
        file["model"]["ignore_merges"] = split.ignore_merges

    eos = {"__type": "AddedToken", "content": "<|eot_id|>", "special": True}  # the older style
    config = {"bos_token": "<|begin_of_text|>", "eos_token": eos}
    return write(folder, inner, config, edit)


def sentencepiece(folder: Path, *, legacy: bool = True, complete: bool = False) -> Path:
    """As in Llama 2 and Mistral: byte fallback, and a space before the first word.

    Args:
        legacy: a normalizer adds the space, before each text between special tokens; otherwise
            the pre-tokenizer does, at the start only.
        complete: all pairs that make a piece are merged, as in tokenizers converted from SentencePiece.
    """
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if legacy:
        inner.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special + BYTE_TOKENS,
        max_token_length=8,
        show_progress=False,
    )
    words = [word for text in CORPUS[:4] for word in text.replace("\n", " ").split(" ")]
    inner.train_from_iterator((text for word in words for text in (word, " " + word)), trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )

    def edit(file: dict[str, Any]) -> None:
        file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] in special]
        vocabulary = file["model"]["vocab"]
        if complete:
            file["model"]["merges"] = [
                [piece[:at], piece[at:]]
                for piece in sorted(vocabulary, key=vocabulary.__getitem__)
                if vocabulary[piece] >= len(special) + len(BYTE_TOKENS)
                for at in range(1, len(piece))
                if {piece[:at], piece[at:]} <= vocabulary.keys()
            ]

    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    return write(folder, inner, config, edit)


def write(
    folder: Path,
    inner: Tokenizer,
    config: dict[str, Any],
    edit: Callable[[dict[str, Any]], None] = lambda file: None,
) -> Path:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, which transformers reads unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    file = json.loads(inner.to_str())
    edit(file)
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    update_config(folder, tokenizer_class="PreTrainedTokenizerFast", **config)
    return folder


def update_config(folder: Path, **changes: Any) -> None:
    """Change fields of ``tokenizer_config.json``."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(config | changes), encoding="utf-8")


def token_id(tokenizer: text.Tokenizer, piece: str) -> int:
    """Return the id of the token with this spelling in the vocabulary."""
    return next(token for token in range(tokenizer.vocab_size) if tokenizer.piece(token) == piece)
