"""Inputs for peers' tools: a tiny random Llama, and random tokens to calibrate with."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB, CONTEXT, TEXTS, GROUP = 32, 32, 16, 32


def write_base(folder: Path) -> None:
    """Write a model of one layer in bf16, and the tokenizer that the tool requires."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def random_texts() -> list[list[int]]:
    """Return tokens to calibrate with."""
    draw = torch.Generator().manual_seed(5)
    ids: list[list[int]] = torch.randint(2, VOCAB, (TEXTS, CONTEXT), generator=draw).tolist()
    return ids
