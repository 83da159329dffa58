"""``galley eval quality``: the loss of a weight type on the user's own data."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from galley.cli.options import MODEL_HELP, Choice, Command, Flags, start_logging, with_flags
from galley.cli.report import check_folders, json_option, write_json, write_text
from galley.cli.terminal import progress, table
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings, WeightDType
from galley.types.weight_dtypes import SPELLINGS

if TYPE_CHECKING:
    from galley.llm.llm import LLM
    from galley.quality.compare import Comparison
    from galley.quality.texts import Texts

_KINDS: Final = get_args(WeightDType)
_KEPT_TOKENS: Final = 100
"""Number of vocabulary tokens in the JSON: those with the greatest loss."""


@click.command(
    cls=Command,
    examples=(
        "galley eval quality org/name --weight-dtype int4 --data calls.jsonl --html report.html",
        "galley eval quality int4-folder --against org/name --also int8",
    ),
)
@with_flags(EngineSettings)
@click.argument("model", required=False, help=MODEL_HELP)
@click.option("--against", metavar="BASE", help="checkpoint to compare with; default: MODEL itself")
@click.option(
    "--against-weight-dtype",
    "--against-quantize",
    "against_weight_dtype",
    type=Choice(_KINDS, SPELLINGS),
    default="auto",
    show_default=True,
    help="type of the base's weights; auto: the checkpoint's",
)
@click.option(
    "--also",
    type=Choice(_KINDS, SPELLINGS),
    multiple=True,
    help="also measure MODEL with this weight type; repeat for several",
)
@click.option(
    "--data",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='text, or JSON lines: {"text": ...}, {"messages": ...} or {"prompt": ..., "answer": ...}; '
    "default: text that the base generates",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=2),
    default=8192,
    show_default=True,
    help="tokens of text to compare on",
)
@click.option(
    "--context",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="maximum tokens per window",
)
@click.option(
    "--match",
    type=click.Choice(("exact", "contains")),
    default="exact",
    show_default=True,
    help="exact: an answer must equal the expected one; contains: it must contain it",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="maximum tokens of an answer",
)
@click.option(
    "--sensitivity",
    is_flag=True,
    help="also measure each part of the base separately as int4 and int8, for the page and the JSON",
)
@json_option
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="also write a page with curves to FILE",
)
def quality(
    flags: Flags, model: str | None, json_file: Path | None, html_file: Path | None, **wanted: Any
) -> None:
    """Measure what quantization costs: a model compared with its base, on the same tokens.

    The base runs unrounded: the inputs of its linear layers, keys and values are float32. Prints
    perplexity, divergence of the next token's probabilities (KL, over the whole vocabulary), how often both
    models have the same likeliest token, how long greedy answers agree, right answers, size and speed.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    check_folders(json=json_file, html=html_file)
    comparison = _compare(settings, **wanted)
    from galley.quality.page import page, rows
    from galley.quality.verdict import verdict

    header, *body = rows(comparison)
    print(table(header, body))
    print(f"{comparison.measured[0].loss.tokens} tokens: {comparison.source}")
    print("\n".join(verdict(one) for one in comparison.measured))
    write_json(json_file, _as_json(comparison))
    if html_file is not None:
        write_text(html_file, page(comparison))


def _compare(
    settings: Settings,
    *,
    against: str | None,
    against_weight_dtype: WeightDType,
    also: tuple[WeightDType, ...],
    data: Path | None,
    tokens: int,
    context: int,
    **how: Any,
) -> "Comparison":
    from galley.demo import MODEL_DIR
    from galley.formats.source import resolve_model
    from galley.quality.compare import compare, unrounded
    from galley.quality.texts import demo_questions, own_texts, read_texts

    base = unrounded(
        replace(
            settings,
            model=settings.model if against is None else against,
            weight_dtype=against_weight_dtype,
        )
    )
    bundled = resolve_model(base.model, revision=base.revision) == MODEL_DIR

    def texts_of(llm: "LLM") -> "Texts":
        window = min(context, llm.info.max_request_tokens)
        if data is not None:
            return read_texts(llm, data, context=window, tokens=tokens)
        own = own_texts(llm, context=window, tokens=tokens)
        return replace(own, questions=demo_questions()) if bundled else own

    models = [settings, *(replace(settings, weight_dtype=kind) for kind in also)]
    with progress("models", 1 + len(models)) as bar:
        return compare(
            base,
            models,
            texts_of,
            on_work=lambda name: bar.update(1),
            **how,
        )


def _as_json(comparison: "Comparison") -> dict[str, Any]:
    def measured(one: Any) -> dict[str, Any]:
        kept = one.tokens[:_KEPT_TOKENS]
        tokens = [{**asdict(token), "text": comparison.spelled[token.token]} for token in kept]
        return {**asdict(one), "tokens": tokens}

    return {
        "base": asdict(comparison.base),
        "source": comparison.source,
        "windows": comparison.windows,
        "measured": [measured(one) for one in comparison.measured],
        "parts": [asdict(part) for part in comparison.parts],
    }
