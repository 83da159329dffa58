"""Train the bundled embedding model: `python -m recipes.embed.train`.

A small BERT with mean pooling, from random weights; in-batch InfoNCE (arXiv:1807.03748) in both
directions over pairs of `recipes.embed.pairs`. The tokenizer is the assistant's, on lower-cased text.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, normalizers
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel

from galley.demo import EMBED_DIR, MODEL_DIR

from ..assistant.tokenizer import PAD, load_tokenizer, token_id
from ..training import write_json
from .evaluate import served_recalls
from .pairs import pairs


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome of a run."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    max_positions: int = 512
    steps: int = 450
    batch: int = 64
    rate: float = 2e-3
    warmup: int = 40
    temperature: float = 0.05
    garbled: float = 0.1  # share of tokens replaced at random, for robustness to unknown words
    longest: int = 128  # most tokens of a text in training
    seed: int = 31
    whole: float = 0.3  # share of callers who say more than their problem


SECOND = Recipe(steps=300, rate=1.2e-3, seed=32, whole=0.8)
"""After the first run: mostly whole messages, in which the other sentences must not matter."""


def make_tokenizer() -> Tokenizer:
    """Return the assistant's tokenizer with lower-casing."""
    tokenizer = load_tokenizer(MODEL_DIR)
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def make_model(recipe: Recipe, tokenizer: Tokenizer) -> BertModel:
    """Return a model with random weights, determined by a seed."""
    torch.manual_seed(recipe.seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        max_position_embeddings=recipe.max_positions,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=token_id(tokenizer, PAD),
    )
    return BertModel(config, add_pooling_layer=False)


@dataclass(frozen=True, slots=True)
class Texts:
    """Padded token ids, their mask and their positions."""

    ids: Tensor
    mask: Tensor
    positions: Tensor


def texts_of(rows: Sequence[list[int]], pad: int, recipe: Recipe, rng: random.Random) -> Texts:
    """Return training inputs: half of the texts start at later positions, so that all are trained."""
    width = max(map(len, rows))
    starts = [rng.choice((0, rng.randint(0, recipe.max_positions - width))) for _ in rows]
    return Texts(
        torch.tensor([row + [pad] * (width - len(row)) for row in rows]),
        torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
        torch.tensor(starts)[:, None] + torch.arange(width),
    )


def vectors_of(model: BertModel, texts: Texts) -> Tensor:
    """Return the mean of the rows, normalized to length 1."""
    rows = model(texts.ids, attention_mask=texts.mask, position_ids=texts.positions)
    counted = texts.mask[..., None]
    return functional.normalize((rows.last_hidden_state * counted).sum(1) / counted.sum(1), dim=-1)


def trained_vectors(
    model: BertModel, tokenizer: Tokenizer, texts: Sequence[str], recipe: Recipe, rng: random.Random
) -> Tensor:
    """Return the vectors of garbled texts, computed in batches of similar length to save padding."""
    vocab, pad = tokenizer.get_vocab_size(), token_id(tokenizer, PAD)
    rows = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: recipe.longest]
        rows.append([rng.randrange(vocab) if rng.random() < recipe.garbled else i for i in ids])
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    parts = [
        vectors_of(model, texts_of([rows[at] for at in part], pad, recipe, rng))
        for part in (order[at : at + 16] for at in range(0, len(order), 16))
    ]
    return torch.cat(parts)[torch.tensor(order).argsort()]


def contrastive_loss(
    first: Tensor, second: Tensor, labels: Sequence[str], temperature: float
) -> Tensor:
    """Return InfoNCE in both directions; other pairs with the same label are not negatives."""
    numbers = {label: number for number, label in enumerate(labels)}
    label = torch.tensor([numbers[one] for one in labels])
    same = (label[:, None] == label) & ~torch.eye(len(labels), dtype=torch.bool)
    scores = (first @ second.T / temperature).masked_fill(same, -torch.inf)
    right = torch.arange(len(labels))
    return (functional.cross_entropy(scores, right) + functional.cross_entropy(scores.T, right)) / 2


def run(recipe: Recipe, output: Path, start: Path | None = None) -> list[float]:
    """Train, from the weights in `start` if given, and write to `output`; return the loss of each step."""
    tokenizer = make_tokenizer()
    model = make_model(recipe, tokenizer).train()
    if start is not None:
        weights = load_file(start / "model.safetensors")
        model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    rng, stream, losses = random.Random(recipe.seed), pairs(recipe.seed, recipe.whole), []
    started = time.monotonic()
    for step in range(recipe.steps):
        batch = list(itertools.islice(stream, recipe.batch))
        rate = min((step + 1) / recipe.warmup, 1.0) * (
            0.5 + 0.5 * math.cos(math.pi * step / recipe.steps)
        )
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * rate
        texts = [pair.first for pair in batch] + [pair.second for pair in batch]
        first, second = trained_vectors(model, tokenizer, texts, recipe, rng).chunk(2)
        labels = [pair.label for pair in batch]
        loss = contrastive_loss(first, second, labels, recipe.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if step % 50 == 49:
            mean = sum(losses[-50:]) / 50
            print(f"step {step + 1}: {mean:.3f}, {time.monotonic() - started:.0f} s", flush=True)
    save(model, tokenizer, output)
    return losses


def save(model: BertModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write bf16 weights, the tokenizer, and sentence-transformers' files."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # transformers makes it readable by its owner only
    tokenizer.save(str(folder / "tokenizer.json"))
    longest = model.config.max_position_embeddings
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "model_max_length": longest,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}
    )
    pooling: dict[str, Any] = {
        "word_embedding_dimension": model.config.hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    text = json.dumps(modules, indent=2) + "\n"
    (folder / "modules.json").write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe's command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.embed.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=EMBED_DIR, help="checkpoint folder")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    run(Recipe(steps=options.steps), options.output)
    run(SECOND, options.output, options.output)
    for name, value in served_recalls(options.output).items():
        print(f"{name}: {value:.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
