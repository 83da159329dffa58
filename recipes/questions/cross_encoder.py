"""Train a cross-encoder that compares two questions, from an encoder and labeled pairs.

    python -m recipes.questions.cross_encoder all-MiniLM-L6-v2 pairs.jsonl --output reranker \\
        --held-out rest.jsonl

The encoder is a BERT in transformers' format; the cross-encoder is one with a label, which ``galley serve``
serves as a reranker. Pairs are divided so that no text is in both parts. Those that are held out are
written down, for ``galley cache tune --reranker`` and ``benchmarks.semantic_cache``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from galley.cache.tuning import Pair, read_pairs
from galley.errors import SettingsError

BATCH = 32
RATE = 5e-5
WARM_UP = 0.1
"""Share of the steps in which the rate grows; it then falls to 0 linearly."""
MOST_TOKENS = 64
SORTED = 50
"""Batches whose pairs are sorted by length together."""
EVERY = 20
"""Steps between two lines of the log."""


def divided(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Divide pairs in two parts that have no text in common.

    Args:
        pairs: labeled pairs.
        share: of the groups of connected texts that go to the first part.
        seed: of the choice.
    """
    parents: dict[str, str] = {}

    def root(text: str) -> str:
        while (parent := parents.setdefault(text, text)) != text:
            parents[text] = parents[parent]
            text = parent
        return text

    for first, second, _ in pairs:
        parents[root(first)] = root(second)
    rng = random.Random(seed)
    is_first = {one: rng.random() < share for one in sorted({root(pair.first) for pair in pairs})}
    parts: tuple[list[Pair], list[Pair]] = ([], [])
    for pair in pairs:
        parts[not is_first[root(pair.first)]].append(pair)
    for part in parts:
        rng.shuffle(part)
    return parts


def batches(pairs: Sequence[Pair], rng: random.Random) -> Iterator[list[Pair]]:
    """Yield batches of pairs of like length, in either order of their texts, endlessly.

    A batch is padded to its longest pair; with mixed lengths, half of it would be padding.

    Raises:
        SettingsError: there are fewer pairs than a batch has.
    """
    if len(pairs) < BATCH:
        raise SettingsError(
            f"{len(pairs)} pairs to train with are less than a batch of {BATCH}: give more pairs, or a "
            "larger --share"
        )
    several = BATCH * SORTED
    while True:
        for begin in range(0, len(pairs), several):
            alike = sorted(pairs[begin : begin + several], key=_length)
            places = [*range(0, len(alike) - BATCH + 1, BATCH)]
            rng.shuffle(places)
            for place in places:
                yield [
                    pair if rng.random() < 0.5 else Pair(pair.second, pair.first, pair.same)
                    for pair in alike[place : place + BATCH]
                ]


def _length(pair: Pair) -> int:
    return len(pair.first) + len(pair.second)


def train(base: str, pairs: Sequence[Pair], steps: int, output: Path, seed: int) -> None:
    """Train, and write the model and its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    # Half of a small encoder's parameters are its words, most of which are in no batch.
    model.base_model.embeddings.requires_grad_(False)
    learned = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATE, weight_decay=0.01)
    warm_up = max(1, round(WARM_UP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))
    )
    mean, given = 0.0, batches(pairs, random.Random(seed))
    model.train()
    for step in range(1, steps + 1):
        batch = next(given)
        inputs = tokenizer(
            [pair.first for pair in batch],
            [pair.second for pair in batch],
            padding=True,
            truncation=True,
            max_length=MOST_TOKENS,
            return_tensors="pt",
        )
        labels = torch.tensor([float(pair.same) for pair in batch])
        logits = model(**inputs).logits[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        mean += (loss.item() - mean) / min(step, EVERY)
        if step % EVERY == 0:
            print(
                f"step {step} of {steps}: loss {mean:.3f}, {time.process_time():.0f} CPU s",
                flush=True,
            )
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def main() -> None:
    """Train, and write what is held out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="folder of an encoder")
    parser.add_argument("pairs", type=Path, help="labeled pairs, as for galley cache tune")
    parser.add_argument("--output", type=Path, required=True, help="folder of the cross-encoder")
    parser.add_argument("--held-out", type=Path, required=True, help="file for the other pairs")
    parser.add_argument("--share", type=float, default=0.7, help="share of the texts to train with")
    parser.add_argument("--steps", type=int, default=1000, help=f"batches of {BATCH} pairs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    seen, others = divided(read_pairs(given.pairs), given.share, given.seed)
    print(f"{len(seen)} pairs to train with, {len(others)} held out")
    lines = (json.dumps({"a": a, "b": b, "same": same}) for a, b, same in others)
    given.held_out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    train(given.base, seen, given.steps, given.output, given.seed)


if __name__ == "__main__":
    main()
