"""``galley quantize``: a checkpoint with integer weights, that vLLM and transformers read, too."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.cache import parse_size
from galley.cli.options import MODEL_HELP, Command, Flags, start_logging, with_flags
from galley.cli.terminal import progress, table
from galley.config import Settings
from galley.errors import SettingsError

if TYPE_CHECKING:
    from galley.calibration.measures import Loss
    from galley.calibration.quantize import Method, Plan, Quantizer
    from galley.calibration.sensitivity import Choice, Part
    from galley.engine.read_model import Model
    from galley.ops.executor import ExecutorFactory
    from galley.quality.texts import Texts

_METHODS: Final = ("rtn", "mse", "gptq", "awq")
_MEASURED_TOKENS: Final = 1024
"""On which the sensitivity of parts is measured."""

_SETTINGS: Final = ("revision", "executor", "device", "threads")


@click.command(cls=Command)
@with_flags(_SETTINGS, extra=("log_level",))
@click.argument("model", help=MODEL_HELP)
@click.argument("out", type=click.Path(path_type=Path, file_okay=False), help="the new folder")
@click.option(
    "--method",
    type=click.Choice(_METHODS),
    default="gptq",
    show_default=True,
    help="rtn: round to nearest; mse: clip each group for the least error; gptq: errors are made up for "
    "by later columns; awq: columns with large inputs are scaled up first",
)
@click.option("--bits", type=click.Choice(("4", "8")), default="4", show_default=True)
@click.option(
    "--group",
    type=click.IntRange(min=0),
    default=128,
    show_default=True,
    help="columns that share a scale: a multiple of 16; 0: whole rows",
)
@click.option(
    "--symmetric/--zero-points",
    default=True,
    show_default=True,
    help="zero is the middle of the range, or each group has a zero point (4 bits)",
)
@click.option(
    "--act-order/--no-act-order",
    default=True,
    show_default=True,
    help="gptq: columns with the largest inputs first",
)
@click.option(
    "--budget",
    metavar="SIZE",
    callback=parse_size,
    help="mixed precision: 4 or 8 bits, or none, for each part, for the least loss in files of so much "
    "(0.7GB)",
)
@click.option(
    "--max-kl",
    type=click.FloatRange(min=0),
    help="mixed precision: the smallest files that lose at most so much (mean KL divergence in nats)",
)
@click.option(
    "--ignore",
    metavar="NAME",
    multiple=True,
    help="leave layers whose name has this in it as they are; repeat for several",
)
@click.option(
    "--data",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='text, or JSON lines: {"text": ...}, {"messages": ...} or {"prompt": ..., "answer": ...}; '
    "default: text that the model generates",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=64),
    default=16384,
    show_default=True,
    help="of text; an eighth is measured on",
)
@click.option(
    "--context",
    type=click.IntRange(min=16),
    default=512,
    show_default=True,
    help="tokens of a window at most",
)
def quantize(flags: Flags, model: str, out: Path, **wanted: Any) -> None:
    """Quantise a checkpoint's linear layers, measure what that costs, and write it as compressed-tensors.

    A run that was interrupted goes on where it was when it is started again.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    began = time.monotonic()
    quantizer, texts = _prepare(settings, out, **wanted)
    with progress("layers", len(quantizer.layers), done=quantizer.done) as bar:
        loss = quantizer.run(lambda name: bar.update(1))
    print(_told(out, loss, texts.source, time.monotonic() - began))


def _prepare(
    settings: Settings,
    out: Path,
    *,
    data: Path | None,
    tokens: int,
    context: int,
    budget: int | None,
    max_kl: float | None,
    **how: Any,
) -> "tuple[Quantizer, Texts]":
    from galley.calibration.quantize import Quantizer
    from galley.engine.read_model import read_model
    from galley.formats.source import resolve_model
    from galley.ops.executor import choose_executor

    executor, factory = choose_executor(settings.executor, settings.device)
    folder = resolve_model(settings.model, revision=settings.revision)
    # Keys and values are not what is measured here.
    read = read_model(replace(settings, kv_dtype="float32"), folder, executor)
    plan = _plan(read, **how)
    texts = _texts(settings, read, data, tokens, context)
    if budget is not None or max_kl is not None:
        plan = _mixed(read, factory, plan, texts, budget, max_kl)
    return Quantizer(read, factory, out, plan, texts.windows), texts


def _plan(
    read: "Model",
    *,
    method: "Method",
    bits: str,
    group: int,
    symmetric: bool,
    act_order: bool,
    ignore: tuple[str, ...],
) -> "Plan":
    from galley.calibration.quantize import Plan, linear_weights
    from galley.quant.grid import Scheme

    if bits == "8" and not symmetric:
        raise SettingsError("--zero-points are for --bits 4; integers of 8 bits are symmetric")
    if group % 16:
        raise SettingsError(f"--group {group}: expected a multiple of 16, or 0 for whole rows")
    linears = linear_weights(read.program)
    names = [name for name in linears if not any(part in name for part in ignore)]
    if not names:
        raise SettingsError(f"--ignore {' '.join(ignore)} leaves no layer to quantise")
    scheme = Scheme(4 if bits == "4" else 8, group, symmetric)
    return Plan(method, dict.fromkeys(names, scheme), act_order)


def _mixed(
    read: "Model",
    factory: "ExecutorFactory",
    plan: "Plan",
    texts: "Texts",
    budget: int | None,
    max_kl: float | None,
) -> "Plan":
    """Another scheme for each part, by what it loses; the table of that is printed."""
    from galley.calibration.quantize import calibration_windows
    from galley.calibration.sensitivity import assign, bytes_of_others, parts_of, schemes_of
    from galley.quant.grid import Scheme

    names = list(plan.schemes)
    first = plan.schemes[names[0]]
    schemes = (replace(first, bits=4), Scheme(8))
    windows = calibration_windows(texts.windows, _MEASURED_TOKENS)
    with progress("parts", 0) as bar:
        parts = parts_of(read, factory, windows, names, schemes, lambda name: bar.update(1))
    room = None if budget is None else budget - bytes_of_others(read, names)
    choices = assign(parts, most_bytes=room, most_kl=max_kl)
    print(_choices_table(parts, choices))
    chosen = schemes_of(parts, choices)
    if not chosen:
        raise SettingsError("no layer needs to be quantised for that: take the checkpoint as it is")
    return replace(plan, schemes=chosen)


def _choices_table(parts: "Sequence[Part]", choices: "Sequence[Choice]") -> str:
    rows = []
    for part, choice in zip(parts, choices, strict=True):
        kl = {c.scheme.bits if c.scheme else 0: f"{c.kl:.2g}" for c in part.choices}
        more = f" and {len(part.names) - 1} more" if len(part.names) > 1 else ""
        taken = f"int{choice.scheme.bits}" if choice.scheme else "as it is"
        name = part.names[0].removesuffix(".weight")
        rows.append((f"{name}{more}", kl[4], kl[8], taken, f"{choice.bytes / 1e6:.4g}"))
    total = sum(choice.kl for choice in choices)
    size = sum(choice.bytes for choice in choices) / 1e6
    rows.append(("all", "", "", f"KL {total:.2g}", f"{size:.4g}"))
    return table(("layers", "KL as int4", "KL as int8", "taken", "MB"), rows, left=(0, 3))


def _texts(
    settings: Settings, read: "Model", data: Path | None, tokens: int, context: int
) -> "Texts":
    """From the file, or as the model makes them; these are kept for the next time."""
    from galley.calibration import store
    from galley.llm import LLM
    from galley.quality.texts import Texts, own_texts, read_texts

    known = f"{read.checkpoint.state()} own text {tokens} {context}"
    name = hashlib.sha256(known.encode()).hexdigest()[:32]
    kept = store.get(name, Texts) if data is None else None
    if kept is not None:
        return kept
    with LLM.from_settings(settings) as llm:
        window = min(context, llm.info.max_request_tokens)
        if data is not None:
            return read_texts(llm, data, context=window, tokens=tokens)
        texts = own_texts(llm, context=window, tokens=tokens)
    store.put(name, f"calibration text of {settings.model}, {texts.tokens} tokens", texts)
    return texts


def _told(out: Path, loss: "Loss", source: str, seconds: float) -> str:
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    return (
        f"{out}: {size / 1e6:.4g} MB, {seconds:.0f} s\n"
        f"perplexity {loss.base_perplexity:.4g} -> {loss.perplexity:.4g}, KL {loss.kl:.2g} "
        f"(99 %: {loss.kl_p99:.2g}), same likeliest token {loss.top1:.2%}, on {loss.tokens} tokens that "
        f"were held out: {source}"
    )
