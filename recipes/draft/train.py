"""Distil the demo model into a draft model for speculative decoding: `python -m recipes.draft.train`.

The teacher answers generated conversations; the draft model learns its distribution at each token of these
answers, since only answers are drafted. An interrupted run continues from where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from galley import LLM, SamplingParams
from galley.demo import DRAFT_DIR, MODEL_DIR
from galley.engine.read_model import Model
from galley.machine import available_cores
from galley.train.run import Report
from galley.train.student import Student, read_parameters
from galley.train.trainer import Example, Options

from ..assistant.generator import examples
from ..assistant.tokenizer import encode_turns, load_tokenizer
from ..assistant.train import copy_row
from ..distilling import EMBEDDING, distil, kept_texts, random_student


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the draft model; other fields are the teacher's."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome of a run, except `Options`."""

    conversations: int = 20_000
    copies: int = 6_000  # messages of random tokens to repeat, as for the teacher
    seed: int = 23
    prompt_weight: float = 0.0  # loss weight of tokens that the assistant did not write
    longest: int = 512  # longer conversations are dropped
    muon_rate: float = 1e-2
    adam_rate: float = 4e-3


def _made(recipe: Recipe) -> Iterator[Example]:
    tokenizer = load_tokenizer(MODEL_DIR)
    conversations = [
        made.messages for made in itertools.islice(examples(recipe.seed), recipe.conversations)
    ]
    with LLM("galley-demo", kv_cache_tokens=65536) as teacher:
        params = SamplingParams(temperature=0, max_tokens=256)
        answers = [o.choices[0].text for o in teacher.chat(conversations, params, progress=True)]
    rows = []
    for messages, answer in zip(conversations, answers, strict=True):
        said = [*messages, {"role": "assistant", "content": answer}]
        ids, own = encode_turns(tokenizer, said)  # type: ignore[arg-type]
        rows.append(Example(ids, [1.0 if mine else recipe.prompt_weight for mine in own]))
    rng = random.Random(recipe.seed)
    rows += [Example(*copy_row(tokenizer, rng, longest=30)) for _ in range(recipe.copies)]
    rng.shuffle(rows)
    return (row for row in rows if len(row.tokens) <= recipe.longest)


def new_student(shape: Shape, teacher: Model, work: Path, seed: int) -> Student:
    """Return a student with random weights but a low-rank approximation of the teacher's embedding.

    It is the best approximation of lower rank, rotated so that its columns are independent, and scaled to
    the spread of the student's own.
    """
    student = random_student(shape, teacher, work, seed)
    embedding = read_parameters(teacher)[0][EMBEDDING]
    _, _, directions = torch.linalg.svd(embedding, full_matrices=False)
    own = embedding @ directions[: shape.hidden_size].T
    with torch.no_grad():
        values = student.parameters[EMBEDDING]
        values.copy_(own * (embedding.std() / own.std()))
    return student


def run(
    recipe: Recipe, shape: Shape, options: Options, output: Path, work: Path, threads: int
) -> Report:
    """Train, or continue from `output`."""
    work.mkdir(parents=True, exist_ok=True)
    return distil(
        lambda teacher: new_student(shape, teacher, work, recipe.seed),
        kept_texts(work, lambda: _made(recipe)),
        options,
        output,
        muon_rate=recipe.muon_rate,
        adam_rate=recipe.adam_rate,
        threads=threads,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe's command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.draft.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=DRAFT_DIR, help="checkpoint folder")
    parser.add_argument(
        "--work", type=Path, default=Path("build/draft-model"), help="folder of the training texts"
    )
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--conversations", type=int, default=Recipe().conversations)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--hidden", type=int, default=Shape().hidden_size)
    parser.add_argument("--layers", type=int, default=Shape().num_hidden_layers)
    options = parser.parse_args(arguments)
    recipe = Recipe(conversations=options.conversations)
    shape = Shape(hidden_size=options.hidden, num_hidden_layers=options.layers)
    training = Options(
        steps=options.steps,
        temperature=1.0,
        kl_weight=1.0,
        top_k=16,
        save_every=50,
        seed=recipe.seed,
        batch_tokens=2048,
    )
    report = run(recipe, shape, training, options.output, options.work, options.threads)
    print(f"{report.before} -> {report.after}\n{report.served}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
