"""``galley eval perplexity`` and ``galley eval answers``: a language model on the user's own data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.report import check_folders, json_option, write_json
from galley.cli.terminal import progress
from galley.errors import RequestError
from galley.settings.engine import EngineSettings
from galley.types import SamplingParams

_MOST_MISSES: Final = 5
"""Number of wrong answers that are shown; ``--json`` has all."""


@click.command(cls=Command)
@with_flags(EngineSettings, model=True)
@click.argument("text", metavar="FILE", type=click.Path(path_type=Path), help="UTF-8 text")
@click.option(
    "--context",
    type=int,
    help="tokens per window; default: 2048, or the model's context if shorter",
)
@click.option(
    "--stride",
    type=int,
    help="tokens from the start of one window to the next; default: half of --context",
)
@json_option
def perplexity(
    flags: Flags, text: Path, context: int | None, stride: int | None, json_file: Path | None
) -> None:
    """Measure how well a model predicts a text of your own: perplexity and bits per byte.

    The text is read in overlapping windows, and each token counts once. Perplexity depends on the
    tokenizer; bits per byte can be compared between any models.
    """
    settings = flags.settings()
    start_logging(settings)
    check_folders(json=json_file)
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {text}: {error}") from error
    from galley.llm.evaluate import TextScorer
    from galley.llm.llm import LLM

    with LLM.from_settings(settings) as llm:
        scorer = TextScorer(llm, words, context=context, stride=stride)
        with progress("windows", scorer.windows) as bar:
            result = scorer.run(settings.running_limit, bar.update)
        name = llm.info.name
    print(
        f"{name}: perplexity {result.perplexity:.4g}, {result.bits_per_byte:.4f} bits per byte "
        f"({result.tokens} tokens; windows: {result.windows} of at most {result.context} tokens, "
        f"stride {result.stride})"
    )
    write_json(json_file, {"model": name, "file": str(text), **asdict(result)})


@click.command(cls=Command)
@with_flags(EngineSettings, model=True)
@click.argument(
    "questions",
    metavar="FILE.jsonl",
    type=click.Path(path_type=Path),
    help='JSON lines: {"prompt": "...", "answer": "..."}',
)
@click.option(
    "--match",
    type=click.Choice(("exact", "contains")),
    default="exact",
    show_default=True,
    help="exact: the output must equal an answer; contains: the output must contain one",
)
@click.option("--system", default="", help="system message before each prompt")
@click.option("--plain", is_flag=True, help="continue the prompts without the chat template")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="maximum tokens of an answer",
)
@json_option
def answers(
    flags: Flags, questions: Path, max_tokens: int, json_file: Path | None, **wanted: Any
) -> None:
    """Count a model's right answers to questions of your own, at temperature 0.

    A line may have "messages" instead of "prompt", and a list of right answers as "answer".
    """
    settings = flags.settings()
    start_logging(settings)
    check_folders(json=json_file)
    from galley.llm.evaluate import ask, read_questions
    from galley.llm.llm import LLM

    read = read_questions(questions)
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    with LLM.from_settings(settings) as llm, progress("answering", len(read)) as bar:
        results = ask(
            llm, read, greedy, together=settings.running_limit, advance=bar.update, **wanted
        )
        name = llm.info.name
    misses = [one for one in results if not one.right]
    right = len(results) - len(misses)
    for miss in misses[:_MOST_MISSES]:
        print(f"wrong: {miss.said[:200]!r} is not {' or '.join(map(repr, miss.question.answers))}")
    print(
        f"{name}: {right} of {len(results)} right = {right / len(results):.1%} ({wanted['match']} match)"
    )
    page = {
        "model": name,
        "file": str(questions),
        "match": wanted["match"],
        "correct": right,
        "total": len(results),
        "rate": right / len(results),
        "answers": [
            {
                "asked": one.question.conversation,
                "expected": one.question.answers,
                "answer": one.said,
                "right": one.right,
            }
            for one in results
        ],
    }
    write_json(json_file, page)
