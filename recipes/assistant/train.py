"""Train the demo model from scratch: `python -m recipes.assistant.train`.

The text is generated during training. Every step's batch depends only on the seed and the step, so an
interrupted run continues from its last checkpoint with the same result.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

from galley.demo import MODEL_DIR
from galley.demo.evaluate import Answerer, Evaluation, evaluate
from galley.demo.heldout import Message

from ..training import Optimizers, mixed_precision, save_state
from .generator import Example, example, examples
from .model import DemoConfig, DemoModel, generate, load_checkpoint, save_checkpoint
from .tokenizer import (
    ASSISTANT,
    BOS,
    END,
    PAD,
    SPECIAL,
    USER,
    encode_prompt,
    encode_turns,
    load_tokenizer,
    save_tokenizer,
    token_id,
    train_tokenizer,
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome of a run."""

    steps: int = 10_800
    seed: int = 17
    step_tokens: int = 3500  # tokens of a step's batch, without padding
    group_tokens: int = 2048  # padded tokens computed at once; bounds memory, not the result
    longest: int = 1024  # longer conversations are dropped
    prompt_weight: float = 0.1  # loss weight of tokens the assistant did not write
    muon_rate: float = 5e-3
    adam_rate: float = 4e-3
    warm_up: int = 100
    ends: tuple[float, ...] = (5 / 9, 2 / 3, 1.0)  # shares of the run where the rate reaches zero
    decay_share: float = 0.5  # share of the first phase in which the rate falls
    polish_rate: float = 0.4  # share of the peak rate at which later phases start
    hard_names: float = 0.15  # share of names that are hard to copy, in the last phase
    tokenizer_conversations: int = 20_000
    copy_steps: int = 600  # the share of copy-only conversations reaches its minimum here
    copy_floor: float = 0.15
    save_every: int = 50


@dataclass(slots=True)
class Batch:
    """Right-padded conversations of similar length, all `[rows, tokens]`."""

    ids: Tensor
    weights: Tensor


def build_tokenizer(recipe: Recipe, config: DemoConfig) -> Tokenizer:
    """Train the tokenizer on the first conversations of the seed's stream."""

    def texts() -> Iterator[str]:
        stream = examples(recipe.seed)
        for _ in range(recipe.tokenizer_conversations):
            made = next(stream)
            yield from (message["content"] for message in made.messages)
            yield made.answer

    return train_tokenizer(texts(), config.vocab_size)


CHECKPOINT = "checkpoint.pt"

Row = tuple[list[int], list[float]]
"""A conversation's token ids, and the loss weight of each."""


def batches(recipe: Recipe, tokenizer: Tokenizer, step: int) -> list[Batch]:
    """Return the batches of a step: its conversations sorted by length, in groups of equal padding."""
    rng = random.Random(f"{recipe.seed}:{step}")
    copying = 1.5 * (1 - step / recipe.copy_steps)
    hard = recipe.hard_names if step >= round(recipe.steps * recipe.ends[-2]) else 0.0
    rows: list[Row] = []
    while sum(len(ids) for ids, _ in rows) < recipe.step_tokens:
        if rng.random() < min(0.95, max(recipe.copy_floor, copying)):
            rows.append(copy_row(tokenizer, rng, longest=min(30, 12 + step // 15)))
            continue
        row = weighted(tokenizer, example(rng, hard), recipe.prompt_weight)
        if len(row[0]) <= recipe.longest:
            rows.append(row)
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row[0])):
        group, width = groups[-1], len(row[0])
        full = (len(group) + 1) * width > recipe.group_tokens
        if group and (full or width > 1.25 * len(group[0][0])):
            groups.append([])
        groups[-1].append(row)
    return [_padded(group, token_id(tokenizer, PAD)) for group in groups]


def copy_row(tokenizer: Tokenizer, rng: random.Random, longest: int) -> Row:
    """Return a message of random tokens to repeat, which teaches a young model to copy.

    Often they come from a small alphabet, like digits, so that the previous token is not enough to
    identify the position.
    """
    tokens: Sequence[int] = range(len(SPECIAL), tokenizer.get_vocab_size())
    roll = rng.random()
    if roll < 0.3:
        tokens = [token_id(tokenizer, digit) for digit in "0123456789"]
    elif roll < 0.6:
        tokens = rng.choices(tokens, k=rng.choice((6, 12, 25)))
    body = rng.choices(tokens, k=rng.randint(4, longest))
    ids, _ = encode_turns(tokenizer, [{"role": "system", "content": "Repeat the message."}])
    user, assistant, end = (token_id(tokenizer, token) for token in (USER, ASSISTANT, END))
    weights = [0.0] * (len(ids) + len(body) + 3) + [1.0] * (len(body) + 1)
    return [*ids, user, *body, end, assistant, *body, end], weights


def weighted(tokenizer: Tokenizer, made: Example, prompt_weight: float) -> Row:
    """Return the token ids and weights of a conversation with its answer."""
    answer: Message = {"role": "assistant", "content": made.answer}
    ids, written = encode_turns(tokenizer, [*made.messages, answer])
    # A queue's name is only two or three tokens, which long answers would outweigh.
    answer_weight = 4.0 if made.task == "queue" else 1.0
    return ids, [answer_weight if own else prompt_weight for own in written]


def _padded(group: list[Row], pad: int) -> Batch:
    width = max(len(ids) for ids, _ in group)
    ids = torch.full((len(group), width), pad)
    weights = torch.zeros(len(group), width)
    for row, (tokens, shares) in enumerate(group):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = torch.tensor(shares)
    return Batch(ids, weights)


def rate_factor(recipe: Recipe, step: int) -> float:
    """Return the share of the peak learning rate at a step: warm-up, plateau, then decays to zero."""
    ends = [round(recipe.steps * share) for share in recipe.ends]
    if step < ends[0]:
        decay = max(1, round(ends[0] * recipe.decay_share))
        return min(1.0, (step + 1) / recipe.warm_up, (ends[0] - step) / decay)
    last, end = next(pair for pair in itertools.pairwise(ends) if step < pair[1])
    return recipe.polish_rate * (end - step) / (end - last)


class Trainer:
    """The model, its two optimizers and the current step.

    It is one of `processes` that hold the same weights: each computes its share of a batch's rows.
    """

    def __init__(
        self,
        recipe: Recipe,
        config: DemoConfig,
        device: torch.device,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device, self.step = recipe, device, 0
        self._process, self._processes = process, processes
        self.model = DemoModel(config).to(device)
        self._optimizers = Optimizers(
            self.model.named_parameters(), recipe.muon_rate, recipe.adam_rate
        )

    def train_step(self, groups: Sequence[Batch]) -> float:
        """Apply one update from all groups; return the loss per assistant-written token."""
        factor = rate_factor(self.recipe, self.step)
        total = sum(float(group.weights[:, 1:].sum()) for group in groups)
        written = sum(int((group.weights[:, 1:] >= 1).sum()) for group in groups)
        shown = torch.zeros(1)
        for number, group in enumerate(groups):
            rows = slice((self._process + number) % self._processes, None, self._processes)
            if len(group.ids[rows]) == 0:
                continue
            losses, weights = self._losses(Batch(group.ids[rows], group.weights[rows]))
            ((losses * weights).sum() / total).backward()  # type: ignore[no-untyped-call]
            shown += float(losses.detach()[weights >= 1].sum()) / written
        if self._processes > 1:
            self._add_up(shown)
        self._optimizers.step(factor)
        self.step += 1
        return float(shown)

    def _add_up(self, shown: Tensor) -> None:
        """Sum gradients and the reported loss over all processes."""
        parts = [shown]
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parts.append(parameter.grad)
        flat = torch.cat([part.flatten() for part in parts])
        distributed.all_reduce(flat)
        sums = torch.split(flat, [part.numel() for part in parts])
        for part, summed in zip(parts, sums, strict=True):
            part.copy_(summed.view_as(part))

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ids, weights = batch.ids.to(self.device), batch.weights.to(self.device)[:, 1:]
        with mixed_precision(self.device):
            states, _ = self.model(ids)
            chosen = weights > 0
            logits = self.model.logits(states[:, :-1][chosen])
        targets = ids[:, 1:][chosen]
        return functional.cross_entropy(logits.float(), targets, reduction="none"), weights[chosen]

    def save(self, path: Path) -> None:
        """Write everything needed to continue; a killed write leaves the old file intact."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": self._optimizers.state(),
        }
        save_state(path, state)

    def load(self, path: Path) -> None:
        """Continue from a file written by `save`."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self._optimizers.load(state["optimizers"])


def train(
    recipe: Recipe, config: DemoConfig, output: Path, work: Path, device: str, processes: int
) -> None:
    """Train, or continue the run whose checkpoint is in `work`, and export to `output`."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    console = Console()
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "tokenizer.json").exists():
        console.print("training the tokenizer")
        save_tokenizer(build_tokenizer(recipe, config), work, config.max_positions)
    if processes == 1:
        _process(0, 1, recipe, config, work, chosen)
    else:
        (work / "meeting").unlink(missing_ok=True)
        run = (processes, recipe, config, work, "cpu")
        multiprocessing.spawn(_process, run, processes)  # type: ignore[attr-defined,no-untyped-call]
    tokenizer = load_tokenizer(work)
    model = DemoModel(config)
    model.load_state_dict(torch.load(work / CHECKPOINT, "cpu", weights_only=True)["model"])
    save_tokenizer(tokenizer, output, config.max_positions)
    bos, eos, pad = (token_id(tokenizer, token) for token in (BOS, END, PAD))
    save_checkpoint(model, output, bos, eos, pad)
    console.print(f"wrote {output}")


def _process(
    process: int, processes: int, recipe: Recipe, config: DemoConfig, work: Path, device: str
) -> None:
    """Run one process of a training run; the first shows its progress and saves it."""
    if processes > 1:
        # Layers this small keep one core busy, but not two: another process makes better use of the second.
        torch.set_num_threads(1)
        meeting = f"file://{(work / 'meeting').absolute()}"
        distributed.init_process_group("gloo", meeting, rank=process, world_size=processes)
    trainer = Trainer(recipe, config, torch.device(device), process, processes)
    console = Console(quiet=process > 0)
    checkpoint = work / CHECKPOINT
    if checkpoint.exists():
        trainer.load(checkpoint)
        console.print(f"continuing at step {trainer.step}")
    _run(trainer, load_tokenizer(work), checkpoint if process == 0 else None, console)


def _run(trainer: Trainer, tokenizer: Tokenizer, checkpoint: Path | None, console: Console) -> None:
    recipe = trainer.recipe
    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    smooth, speed = 0.0, 0.0
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=recipe.steps, completed=trainer.step, loss=0.0, speed=0.0)
        while trainer.step < recipe.steps:
            began = time.perf_counter()
            groups = batches(recipe, tokenizer, trainer.step)
            loss = trainer.train_step(groups)
            count = sum(int((group.weights > 0).sum()) for group in groups)
            now = count / (time.perf_counter() - began)
            smooth = loss if smooth == 0.0 else 0.98 * smooth + 0.02 * loss
            speed = now if speed == 0.0 else 0.95 * speed + 0.05 * now
            progress.update(bar, completed=trainer.step, loss=smooth, speed=speed)
            if checkpoint and (
                trainer.step % recipe.save_every == 0 or trainer.step == recipe.steps
            ):
                trainer.save(checkpoint)
                console.print(f"step {trainer.step}  loss {smooth:.4f}  {speed:.0f} tokens/s")


def answerer(model: DemoModel, tokenizer: Tokenizer, limit: int = 256) -> Answerer:
    """Return greedy answers of the torch model, as `evaluate` requests them."""
    stop = token_id(tokenizer, END)

    def answer(conversations: Sequence[list[Message]]) -> list[str]:
        prompts = [encode_prompt(tokenizer, messages) for messages in conversations]
        answers = [""] * len(prompts)
        for width in sorted({len(prompt) for prompt in prompts}):
            rows = [row for row, prompt in enumerate(prompts) if len(prompt) == width]
            outputs = generate(model, [prompts[row] for row in rows], stop, limit)
            for row, ids in zip(rows, outputs, strict=True):
                answers[row] = tokenizer.decode(ids, skip_special_tokens=False)
        return answers

    return answer


def _report(result: Evaluation, console: Console) -> None:
    table = Table("set", "task", "exact match", "target met")
    for row in result.scores:
        shown = f"{row.correct}/{row.total} = {row.rate:.1%}"
        table.add_row(str(row.set), row.task, shown, "yes" if row.passed else "no")
    console.print(table)
    for miss in result.misses:
        console.print(
            f"[bold]set {miss.item.set} {miss.item.task}[/bold]", miss.item.messages[-1]["content"]
        )
        console.print(f"  expected {miss.item.answer}\n  answered {miss.answer}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe's command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.assistant.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Recipe()
    parser.add_argument("--output", type=Path, default=MODEL_DIR, help="checkpoint folder")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("build/demo-model"),
        help="folder of the state of an interrupted run",
    )
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--processes", type=int, help="that share each step, on a CPU; default: one for each core"
    )
    parser.add_argument(
        "--evaluate", type=Path, metavar="DIR", help="evaluate this checkpoint and exit"
    )
    options = parser.parse_args(arguments)
    if options.evaluate is not None:
        model, tokenizer = load_checkpoint(options.evaluate), load_tokenizer(options.evaluate)
        result = evaluate(answerer(model, tokenizer))
        _report(result, Console())
        return 0 if result.passed else 1
    recipe = replace(default, steps=options.steps, seed=options.seed)
    cuda = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    processes = 1 if cuda else options.processes or len(os.sched_getaffinity(0))
    train(recipe, DemoConfig(), options.output, options.work, options.device, processes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
