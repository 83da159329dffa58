"""The common parts of the training commands: options, texts, torch, and the final report."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from galley.cli.options import ABOVE_ZERO
from galley.cli.texts import texts_for
from galley.errors import SettingsError, pip_install
from galley.settings.config import Settings

if TYPE_CHECKING:
    from galley.engine.read_model import Model
    from galley.train.run import Report
    from galley.train.trainer import Example

SETTINGS: Final = ("revision", "executor", "device", "threads")

_OPTIONS: Final = (
    click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True),
    click.option(
        "--batch-tokens",
        type=click.IntRange(min=16),
        default=4096,
        show_default=True,
        help="tokens per step; a longer text is a step of its own",
    ),
    click.option(
        "--tokens",
        type=click.IntRange(min=64),
        default=1 << 20,
        show_default=True,
        help="tokens of text; one window in eight is held out to measure the loss",
    ),
    click.option(
        "--context",
        type=click.IntRange(min=16),
        default=512,
        show_default=True,
        help="maximum tokens per window",
    ),
    click.option(
        "--answers-only",
        is_flag=True,
        help="compute the loss on the assistant's tokens only (data with messages, or prompts and answers)",
    ),
    click.option(
        "--temperature",
        type=ABOVE_ZERO,
        default=1.0,
        show_default=True,
        help="divides the logits of teacher and student; above 1, unlikely tokens count more",
    ),
    click.option(
        "--kl-weight",
        type=click.FloatRange(0, 1),
        default=0.9,
        show_default=True,
        help="weight of the divergence from the teacher in the loss; the rest is cross entropy on the text",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="number of the teacher's likeliest tokens stored on disk per position, 4 to 6 bytes each",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
    click.option(
        "--save-every",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        metavar="STEPS",
        help="steps between saves of the state, from which an interrupted run resumes",
    ),
)

DATA_HELP: Final = (
    'text, or JSON lines: {"text": ...}, {"messages": ...} or {"prompt": ..., "answer": ...}; '
    "default: text that the model generates"
)


def training_options(
    *, learning_rate: float
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with the training options; the default of the learning rate is per command."""
    rate = click.option(
        "--learning-rate",
        type=ABOVE_ZERO,
        default=learning_rate,
        show_default=True,
        help="peak learning rate, reached after a twentieth of the steps; it then decays to zero",
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed((*_OPTIONS, rate)):
            command = option(command)
        return command

    return decorate


def need_torch() -> None:
    """Raise SettingsError if torch cannot be imported."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise SettingsError(
            f"training needs torch, which cannot be imported ({error}): {pip_install('torch')}"
        ) from error


def examples_of(
    settings: Settings,
    read: "Model",
    data: Path | None,
    *,
    tokens: int,
    context: int,
    answers_only: bool,
) -> "tuple[Sequence[Example], str]":
    """Return the texts to train with, and their source.

    Raises:
        SettingsError: only answers are to be trained on, but the model generates the texts.
        RequestError: the file cannot be read, or has no tokens to train on.
    """
    from galley.train.trainer import Example

    if answers_only and data is None:
        raise SettingsError(
            "--answers-only needs data with answers; text that the model generates has none"
        )
    size = {"tokens": tokens, "context": context}
    texts = texts_for(settings, read, data, **size, mark_answers=answers_only)
    if not answers_only:
        return [Example(window) for window in texts.windows], texts.source
    pairs = zip(texts.windows, texts.answers, strict=True)
    return [Example(window, [float(own) for own in marks]) for window, marks in pairs], texts.source


def summary(out: Path, report: "Report", source: str, seconds: float) -> str:
    """Return the summary of a run."""
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    before, after, served = report.before, report.after, report.served
    return (
        f"{out}: {size / 1e6:.4g} MB, {seconds:.0f} s\n"
        f"loss {before.cross_entropy:.4g} -> {after.cross_entropy:.4g}, divergence from the teacher "
        f"{before.kl:.2g} -> {after.kl:.2g} nats\n"
        f"as served: perplexity {served.perplexity:.4g} (teacher {served.base_perplexity:.4g}), "
        f"KL {served.kl:.2g} (99 %: {served.kl_p99:.2g}), same likeliest token {served.top1:.2%}, on "
        f"{served.tokens} held-out tokens: {source}"
    )
