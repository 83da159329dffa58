"""The demo model's byte-level BPE tokenizer and chat template.

A capitalized word never includes the space before it, so a name has the same tokens in a sentence
and between quotes; each digit is a token. Both reduce copying into JSON to repeating tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from galley.demo.heldout import Message

BOS, SYSTEM, USER, ASSISTANT, END, PAD = SPECIAL = (
    "<|bos|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|pad|>",
)

_SPLIT = (
    r"'(?:s|t|re|ve|m|ll|d)\b"
    r"| ?[\p{Ll}\p{Lo}\p{Lm}][\p{Ll}\p{Lo}\p{Lm}\p{M}]*"
    r"|[\p{Lu}\p{Lt}]+[\p{Ll}\p{M}]*"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s"
)

CHAT_TEMPLATE = (
    "{{- '<|bos|>' -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('unknown role: ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def byte_level_bpe(split: str) -> Tokenizer:
    """Return an untrained tokenizer of the bytes of the pieces that match a regular expression."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train on texts. Every byte has a token, so any Unicode text survives a round trip."""
    tokenizer = byte_level_bpe(_SPLIT)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json` from `folder`."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token.

    Raises:
        KeyError: the tokenizer has no such token.
    """
    number = tokenizer.token_to_id(token)
    if number is None:
        raise KeyError(token)
    return number


def encode_turns(tokenizer: Tokenizer, messages: list[Message]) -> tuple[list[int], list[bool]]:
    """Return token ids in the chat template's format, and which of them the assistant wrote."""
    ids: list[int] = [token_id(tokenizer, BOS)]
    written = [False]
    for message in messages:
        body = tokenizer.encode(message["content"].strip(), add_special_tokens=False).ids
        end = token_id(tokenizer, END)
        ids += [token_id(tokenizer, f"<|{message['role']}|>"), *body, end]
        own = message["role"] == "assistant"
        written += [False, *[own] * (len(body) + 1)]
    return ids, written


def encode_prompt(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """Return token ids of a conversation, up to the start of the assistant's answer."""
    ids, _ = encode_turns(tokenizer, messages)
    return [*ids, token_id(tokenizer, ASSISTANT)]
