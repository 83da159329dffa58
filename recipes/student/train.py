"""Train a model a quarter of the size of the demo model: `python -m recipes.student.train OUT`.

It first trains like the demo model, on generated conversations and texts to repeat. Then it learns the demo
model's token distributions over generated conversations (distillation). The saved weights are the mean of
those before and after distillation. An interrupted run continues from where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from galley.demo import MODEL_DIR
from galley.demo.heldout import Message
from galley.engine.read_model import Model, read_model
from galley.settings.engine import EngineSettings
from galley.train.run import Report
from galley.train.student import Student, from_model
from galley.train.trainer import Example, Options

from ..assistant import train as assistant
from ..assistant.generator import Example as Conversation
from ..assistant.generator import example
from ..assistant.model import DemoConfig, load_checkpoint
from ..assistant.tokenizer import load_tokenizer, save_tokenizer
from ..assistant.vocabulary import is_held_out
from ..distilling import distil, kept_texts
from ..training import write_weights


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome of a run, except `Options`."""

    shape: DemoConfig = field(
        default_factory=lambda: DemoConfig(hidden=128, intermediate=248, head_dim=32)
    )
    alone: assistant.Recipe = field(
        default_factory=lambda: assistant.Recipe(
            steps=7000, seed=31, group_tokens=1024, muon_rate=8e-3
        )
    )
    conversations: int = 20_000
    pieced_names: float = 0.6  # share of tickets with a caller named by random tokens
    copies: int = 5_000  # messages of random tokens to repeat
    hard_names: float = 0.15  # share of names that are hard to copy
    seed: int = 29
    longest: int = 512  # longer conversations are dropped
    muon_rate: float = 2e-3
    adam_rate: float = 1e-3


class Pieces(NamedTuple):
    """Tokens as text: those that can begin a name, and those that can continue one."""

    first: Sequence[str]
    more: Sequence[str]


def renamed(made: Conversation, pieces: Pieces, rng: random.Random) -> Conversation:
    """Return a ticket's conversation with random tokens as the caller's name; unchanged if none is named.

    Otherwise a small model learns to copy only the tokens of its training names in these places.
    """
    name = json.loads(made.answer)["name"]
    if name is None:
        return made
    words: list[str] = []
    while len(words) < len(name.split()):
        word = rng.choice(pieces.first) + "".join(rng.choices(pieces.more, k=rng.randint(0, 2)))
        if not is_held_out(word):
            words.append(word)
    whole, new = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)"), " ".join(words)
    messages: list[Message] = [
        {**message, "content": whole.sub(new, message["content"])} for message in made.messages
    ]
    return replace(made, messages=messages, answer=whole.sub(new, made.answer))


def _made(recipe: Recipe) -> Iterator[Example]:
    tokenizer, rng = load_tokenizer(MODEL_DIR), random.Random(recipe.seed)
    texts = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
    pieces = Pieces(*([t for t in texts if re.fullmatch(f, t)] for f in ("[A-Z][a-z]*", "[a-z]+")))
    rows = []
    for _ in range(recipe.conversations):
        made = example(rng, recipe.hard_names)
        if made.task == "ticket" and rng.random() < recipe.pieced_names:
            made = renamed(made, pieces, rng)
        rows.append(Example(*assistant.weighted(tokenizer, made, prompt_weight=0.0)))
    rows += [Example(*assistant.copy_row(tokenizer, rng, longest=30)) for _ in range(recipe.copies)]
    rng.shuffle(rows)
    return (row for row in rows if len(row.tokens) <= recipe.longest)


def run(recipe: Recipe, options: Options, output: Path, work: Path, processes: int) -> Report:
    """Train, or continue from `work` and `output`; the report is of the last step's weights."""
    work.mkdir(parents=True, exist_ok=True)
    save_tokenizer(load_tokenizer(MODEL_DIR), work, recipe.shape.max_positions)
    young = work / "young"
    assistant.train(recipe.alone, recipe.shape, young, work, "cpu", processes)

    def new_student(teacher: Model) -> Student:
        return from_model(read_model(EngineSettings(dtype="float32"), young), teacher)

    report = distil(
        new_student,
        kept_texts(work, lambda: _made(recipe)),
        options,
        output,
        muon_rate=recipe.muon_rate,
        adam_rate=recipe.adam_rate,
        threads=processes,
    )
    go_half_way_back(output, young)
    return report


def go_half_way_back(output: Path, start: Path) -> None:
    """Average the weights in `output` with those from which they were trained.

    This keeps more of the earlier abilities: "Robust fine-tuning of zero-shot models", arXiv:2109.01903.
    """
    model, before = load_checkpoint(output), load_checkpoint(start)
    with torch.no_grad():
        for after, first in zip(model.parameters(), before.parameters(), strict=True):
            after.lerp_(first, 0.5)
    write_weights(model, output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe's command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.student.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Recipe()
    parser.add_argument("output", type=Path, help="checkpoint folder")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("build/student"),
        help="folder of the state of an interrupted run",
    )
    parser.add_argument(
        "--alone", type=int, default=default.alone.steps, help="steps before distillation"
    )
    parser.add_argument("--steps", type=int, default=1500, help="steps of distillation")
    parser.add_argument("--conversations", type=int, default=default.conversations)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--processes", type=int, default=cores, help="number of processes that share each step"
    )
    given = parser.parse_args(arguments)
    alone = replace(default.alone, steps=given.alone)
    recipe = replace(default, conversations=given.conversations, alone=alone)
    options = Options(
        steps=given.steps,
        kl_weight=0.8,
        top_k=16,
        save_every=50,
        seed=recipe.seed,
        batch_tokens=2048,
    )
    report = run(recipe, options, given.output, given.work, given.processes)
    print(f"{report.before} -> {report.after}\n{report.served}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
