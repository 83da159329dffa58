"""Distils the demo model into one of a quarter of its size: `python -m recipes.student.train`.

It begins as a part of the demo model, and learns what that says of the answers of generated conversations.
A run that was killed goes on where it was.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from galley.demo import MODEL_DIR
from galley.engine.read_model import Model
from galley.machine import available_cores
from galley.train.run import Report
from galley.train.student import Student, read_parameters
from galley.train.trainer import Example, Options

from ..assistant.generator import example
from ..assistant.tokeniser import load_tokeniser
from ..assistant.train import copy_row, weighted
from ..distilling import EMBEDDING, distil, kept_texts, random_student

FINAL_NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the student; what is not here is as in the teacher: its layers and their heads."""

    hidden_size: int = 128
    intermediate_size: int = 120


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome of a run, but for `Options`."""

    conversations: int = 30_000
    copies: int = 5_000  # messages of random tokens to repeat, as the teacher had them
    hard_names: float = 0.15  # the share of names that are hard to copy
    seed: int = 29
    longest: int = 512  # conversations with more tokens are dropped
    muon_rate: float = 1e-2
    adam_rate: float = 4e-3


def _made(recipe: Recipe) -> Iterator[Example]:
    tokeniser, rng = load_tokeniser(MODEL_DIR), random.Random(recipe.seed)
    rows = [
        Example(*weighted(tokeniser, example(rng, recipe.hard_names), prompt_weight=0.0))
        for _ in range(recipe.conversations)
    ]
    rows += [Example(*copy_row(tokeniser, rng, longest=30)) for _ in range(recipe.copies)]
    rng.shuffle(rows)
    return (row for row in rows if len(row.tokens) <= recipe.longest)


def new_student(shape: Shape, teacher: Model, work: Path, seed: int) -> Student:
    """The teacher seen through fewer columns, with the strongest of its layers' hidden units.

    The columns are the directions in which the embedding and what layers add to it have most of their
    spread, each of these matrices counted alike.
    """
    student, given = random_student(shape, teacher, work, seed), read_parameters(teacher)[0]
    added = [
        w.T for name, w in given.items() if name.endswith(("o_proj.weight", "down_proj.weight"))
    ]
    seen = torch.cat([w / w.norm() for w in (given[EMBEDDING], *added)])
    _, _, directions = torch.linalg.svd(seen, full_matrices=False)
    columns = directions[: shape.hidden_size].T
    made = {EMBEDDING: given[EMBEDDING] @ columns}
    # A norm makes the length of a row the root of its columns.
    longer = (columns.shape[0] / columns.shape[1]) ** 0.5
    made[FINAL_NORM] = torch.full((shape.hidden_size,), longer * float(given[FINAL_NORM].mean()))
    for layer in range(teacher.checkpoint.config["num_hidden_layers"]):
        made |= _layer(f"model.layers.{layer}", given, columns, shape.intermediate_size, longer)
    with torch.no_grad():
        for name, values in made.items():
            student.parameters[name].copy_(values)
    return student


def _layer(
    name: str, given: dict[str, Tensor], columns: Tensor, units: int, longer: float
) -> dict[str, Tensor]:
    """A layer's tensors; the weights of its norms become part of the matrices that read them."""
    made: dict[str, Tensor] = {}
    for norm, part, reading, writing in (
        ("input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj"),
        ("post_attention_layernorm", "mlp", ("gate_proj", "up_proj"), "down_proj"),
    ):
        made[f"{name}.{norm}.weight"] = torch.full((columns.shape[1],), longer)
        inputs = [
            given[f"{name}.{part}.{r}.weight"] * given[f"{name}.{norm}.weight"] for r in reading
        ]
        output = given[f"{name}.{part}.{writing}.weight"]
        if part == "mlp":
            strength = output.norm(dim=0) * inputs[0].norm(dim=1) * inputs[1].norm(dim=1)
            kept = strength.topk(units).indices
            inputs, output = [rows[kept] for rows in inputs], output[:, kept]
        for role, rows in zip(reading, inputs, strict=True):
            made[f"{name}.{part}.{role}.weight"] = rows @ columns
        made[f"{name}.{part}.{writing}.weight"] = columns.T @ output
    return made


def run(
    recipe: Recipe, shape: Shape, options: Options, output: Path, work: Path, threads: int
) -> Report:
    """Train, or go on with what lies in `output`."""
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
    """Command line of the recipe; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recipes.student.train", description=__doc__)
    parser.add_argument("output", type=Path, help="folder of the checkpoint")
    parser.add_argument("--work", type=Path, default=Path("build/student"), help="its texts")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--conversations", type=int, default=Recipe().conversations)
    parser.add_argument("--threads", type=int, default=available_cores())
    given = parser.parse_args(arguments)
    recipe = Recipe(conversations=given.conversations)
    options = Options(
        steps=given.steps,
        kl_weight=0.8,
        top_k=16,
        save_every=50,
        seed=recipe.seed,
        batch_tokens=2048,
    )
    report = run(recipe, Shape(), options, given.output, given.work, given.threads)
    print(f"{report.before} -> {report.after}\n{report.served}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
