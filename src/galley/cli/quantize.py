"""``galley quantize``: a checkpoint with integer weights that vLLM and transformers read, or llama.cpp."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.cache import parse_size
from galley.cli.options import MODEL_HELP, Command, Flags, start_logging, with_flags
from galley.cli.quantize_plan import Wanted, check_model, plan_of
from galley.cli.terminal import progress
from galley.cli.texts import texts_for
from galley.errors import SettingsError
from galley.settings.config import Settings

if TYPE_CHECKING:
    from galley.calibration.measures import Loss
    from galley.calibration.to_gguf import ToGGUF
    from galley.engine.read_model import Model

_METHODS: Final = ("rtn", "mse", "gptq", "awq", "smoothquant", "none")
_GGUF: Final = "gguf"
_OF_METHODS: Final = {
    "bits": "--bits",
    "group": "--group",
    "symmetric": "--symmetric",
    "act_order": "--act-order",
    "budget": "--budget",
    "max_kl": "--max-kl",
    "inputs": "--inputs",
    "ignore": "--ignore",
    "data": "--data",
    "tokens": "--tokens",
    "context": "--context",
}
"""Options that do not apply to ``--method none``."""

_NAMED: Final = 20
"""Most experts that are named in the summary."""

_SETTINGS: Final = ("revision", "executor", "device", "threads")


@click.command(
    cls=Command,
    examples=(
        "galley quantize org/name OUT --method gptq --data calls.jsonl",
        "galley quantize org/name OUT.gguf --format gguf",
    ),
)
@with_flags(_SETTINGS, extra=("log_level",))
@click.argument("model", help=MODEL_HELP)
@click.argument("out", type=click.Path(path_type=Path), help="the new folder, or the .gguf file")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(("compressed-tensors", _GGUF)),
    default="compressed-tensors",
    show_default=True,
    help="compressed-tensors: a folder for vLLM and transformers; gguf: one file for llama.cpp",
)
@click.option(
    "--method",
    type=click.Choice(_METHODS),
    default="gptq",
    show_default=True,
    help="rtn: round to nearest; mse: clip each group for the least error; gptq: later columns compensate "
    "for errors; awq: scale up columns with large inputs first; smoothquant: scale columns so that "
    "inputs lose least as int8 (--bits 8); none: keep all values (--format gguf only)",
)
@click.option("--bits", type=click.Choice(("4", "8")), default="4", show_default=True)
@click.option(
    "--group",
    type=click.IntRange(min=0),
    default=None,
    help="columns that share a scale: a multiple of 16, 128 by default; 0: whole rows; gguf: 32",
)
@click.option(
    "--inputs",
    type=click.Choice(("float", "dynamic", "min-max", "percentile", "mse", "entropy")),
    default="float",
    show_default=True,
    help="how the layers' inputs are rounded (--bits 8 only). dynamic: int8 with a scale per "
    "token; min-max and the others: int8 with one scale per layer, which this observer determines from the "
    "text, and which Galley uses unless activations is set",
)
@click.option(
    "--symmetric/--zero-points",
    default=True,
    show_default=True,
    help="symmetric ranges, or a zero point per group (--bits 4 only)",
)
@click.option(
    "--act-order/--no-act-order",
    default=True,
    show_default=True,
    help="gptq: quantize columns with the largest inputs first",
)
@click.option(
    "--budget",
    metavar="SIZE",
    callback=parse_size,
    help="mixed precision: choose 4 bits, 8 bits or none for each part, for the least loss within this "
    "file size (0.7GB)",
)
@click.option(
    "--max-kl",
    type=click.FloatRange(min=0),
    help="mixed precision: the smallest files within this loss (mean KL divergence in nats)",
)
@click.option(
    "--ignore",
    metavar="NAME",
    multiple=True,
    help="do not quantize layers whose name contains this; repeat for several",
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
    help="tokens of text; an eighth is held out to measure the loss (rtn and mse, which need no "
    "calibration, measure on all of it)",
)
@click.option(
    "--context",
    type=click.IntRange(min=16),
    default=512,
    show_default=True,
    help="maximum tokens per window",
)
@click.option(
    "--nearest-tokenizer",
    is_flag=True,
    help="gguf: write a tokenizer that llama.cpp lacks as the most similar one that it has",
)
def quantize(flags: Flags, model: str, out: Path, **wanted: Any) -> None:
    """Quantize a checkpoint's linear layers, measure what that costs, and write it.

    Start an interrupted run again to resume it.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    _check(out, **wanted)
    gguf = wanted.pop("file_format") == _GGUF
    nearest = wanted.pop("nearest_tokenizer")
    read = _read(settings)
    made = _gguf(settings, read, nearest) if gguf else None
    if wanted["method"] == "none":
        assert made is not None
        _write(read, made, out)
        print(f"{out}: {_megabytes(out)} MB, all values unchanged")
    else:
        _quantize(settings, read, out, made, **wanted)


def _check(
    out: Path, *, file_format: str, method: str, nearest_tokenizer: bool, **wanted: Any
) -> None:
    """Raise SettingsError for options that contradict each other."""
    gguf = file_format == _GGUF
    if gguf != (out.suffix == ".gguf"):
        expected = "a name that ends in .gguf" if gguf else "a folder, or --format gguf"
        raise SettingsError(f"OUT {out}: expected {expected}")
    if gguf and out.exists():
        raise SettingsError(f"{out} exists; name a new file")
    if nearest_tokenizer and not gguf:
        raise SettingsError(
            "--nearest-tokenizer is for --format gguf; folders keep their tokenizer"
        )
    if method != "none":
        return
    if not gguf:
        raise SettingsError(
            "--method none needs --format gguf: in a folder it would write an unchanged copy"
        )
    context = click.get_current_context()
    for name, option in _OF_METHODS.items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise SettingsError(f"{option} does not apply to --method none")


def _read(settings: Settings) -> "Model":
    from galley.engine.read_model import read_for_executor
    from galley.formats.source import resolve_model
    from galley.ops.choice import choose_executor

    chosen = choose_executor(settings.executor, settings.device)
    folder = resolve_model(settings.model, revision=settings.revision)
    # Keys and values are not part of this measurement.
    return read_for_executor(replace(settings, kv_dtype="float32"), folder, chosen)[0]


def _gguf(settings: Settings, read: "Model", nearest: bool) -> "ToGGUF":
    """Prepare the contents of a GGUF file; raise an error for unsupported models before any computation."""
    from galley.calibration.to_gguf import prepare

    made = prepare(read, Path(settings.model).name, nearest_tokenizer=nearest)
    for note in made.notes:
        print(note)
    return made


def _write(read: "Model", made: "ToGGUF", out: Path) -> None:
    from galley.calibration.to_gguf import write

    write(read, made, out)


def _quantize(
    settings: Settings,
    read: "Model",
    out: Path,
    made: "ToGGUF | None",
    *,
    data: Path | None,
    tokens: int,
    context: int,
    **options: Any,
) -> None:
    from galley.calibration.held_out import all_measured, held_apart
    from galley.calibration.quantize import Quantizer
    from galley.ops.choice import choose_executor, executor_of

    began = time.monotonic()
    wanted = Wanted(**options, gguf=made is not None)
    check_model(read, wanted)  # before the calibration texts, which take minutes
    texts = texts_for(settings, read, data, tokens=tokens, context=context)
    chosen = choose_executor(settings.executor, settings.device)
    _, factory = executor_of(read.program, settings.executor, chosen)
    split = (held_apart if wanted.calibrates else all_measured)(texts.windows)
    plan = plan_of(read, factory, split, wanted)
    folder = out if made is None else out.with_name(f"{out.name}.layers")
    quantizer = Quantizer(read, factory, folder, plan, split)

    def finish(written: Path) -> None:
        if made is None and not wanted.observes:
            return
        done = _read(replace(settings, model=str(written)))
        if made is not None:
            _write(done, made, out)
        else:
            from galley.calibration.static_inputs import write_static_inputs

            write_static_inputs(done, factory, split.calibration, wanted.inputs)

    with progress("layers", len(quantizer.layers), done=quantizer.done) as bar:
        loss = quantizer.run(lambda name: bar.update(1), finish)
    if made is not None:
        shutil.rmtree(folder)
    source = f"held out: {texts.source}" if split.calibration else f"of {texts.source}"
    print(_summary(out, loss, source, time.monotonic() - began))
    if quantizer.hardly_reached:
        print(_few(quantizer.hardly_reached))


def _summary(out: Path, loss: "Loss", source: str, seconds: float) -> str:
    return (
        f"{out}: {_megabytes(out)} MB, {seconds:.0f} s\n"
        f"perplexity {loss.base_perplexity:.4g} -> {loss.perplexity:.4g}, KL {loss.kl:.2g} "
        f"(99 %: {loss.kl_p99:.2g}), same likeliest token {loss.top1:.2%}, on {loss.tokens} tokens "
        f"{source}"
    )


def _few(reached: Mapping[str, int]) -> str:
    """Return a text about experts that few calibration tokens were routed to."""
    named = [f"{name} ({rows})" for name, rows in reached.items()][:_NAMED]
    more = len(reached) - len(named)
    if more:
        named.append(f"{more} more (galley_quantize.hardly_reached in config.json)")
    return (
        f"{len(reached)} experts were reached by fewer calibration tokens than their matrices have columns "
        f"and are rounded to nearest: {', '.join(named)}; --tokens sets the amount of text"
    )


def _megabytes(out: Path) -> str:
    files = [out] if out.is_file() else out.glob("*.safetensors")
    return f"{sum(path.stat().st_size for path in files) / 1e6:.4g}"
