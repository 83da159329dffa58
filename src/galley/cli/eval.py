"""``galley eval``: how well a model does what it was made for."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import MODEL_HELP, Command, Flags, start_logging, with_flags
from galley.cli.terminal import progress, table
from galley.config import EngineSettings
from galley.errors import SettingsError
from galley.types import SamplingParams

if TYPE_CHECKING:
    from galley.demo.evaluate import Evaluation
    from galley.demo.generator import Message
    from galley.llm import LLM

_LONGEST_ANSWER: Final = 256
"""Tokens. Right answers have at most as many characters; a model that rambles on is wrong already."""


@click.group("eval")
def eval_group() -> None:
    """Measure the quality of a model."""


@eval_group.command(cls=Command)
@with_flags(EngineSettings)
@click.argument("model", required=False, help=MODEL_HELP)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="write scores and misses to FILE, too",
)
def demo(flags: Flags, model: str | None, json_file: Path | None) -> None:
    """Score the call-centre tasks on both held-out sets, by exact match of greedy answers.

    Set 1 holds out names, accounts and numbers; set 2 the wordings, too.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    if json_file is not None and not json_file.parent.is_dir():
        raise SettingsError(f"--json {json_file}: the folder {json_file.parent} does not exist")
    from galley.demo import heldout
    from galley.demo.evaluate import evaluate
    from galley.llm import LLM

    total = sum(len(heldout.read(number)) for number in heldout.SETS)
    with LLM.from_settings(settings) as llm, progress("answering", total) as bar:
        answer = _answerer(llm, settings.running_limit, bar.update)
        evaluation = evaluate(answer)
    _print_table(evaluation)
    if json_file is not None:
        page = json.dumps(_as_json(evaluation), indent=2, ensure_ascii=False)
        json_file.write_text(page + "\n", encoding="utf-8")


def _answerer(
    llm: "LLM", together: int, advance: Callable[[int], None]
) -> "Callable[[Sequence[list[Message]]], list[str]]":
    greedy = SamplingParams(temperature=0.0, max_tokens=_LONGEST_ANSWER)

    def answer(conversations: "Sequence[list[Message]]") -> list[str]:
        said: list[str] = []
        for start in range(0, len(conversations), together):
            outputs = llm.chat(list(conversations[start : start + together]), greedy)
            said += [output.text for output in outputs]
            advance(len(outputs))
        return said

    return answer


def _print_table(evaluation: "Evaluation") -> None:
    from galley.demo.evaluate import TARGETS

    rows = [
        (
            str(score.set),
            score.task,
            f"{score.correct}/{score.total} = {score.rate:.1%}",
            f"{TARGETS[score.set]:.0%}",
            "reached" if score.passed else "missed",
        )
        for score in evaluation.scores
    ]
    print(table(("set", "task", "exact match", "target", ""), rows, left=(0, 1, 4)))


def _as_json(evaluation: "Evaluation") -> dict[str, Any]:
    return {
        "passed": evaluation.passed,
        "scores": [
            {**asdict(score), "rate": score.rate, "passed": score.passed}
            for score in evaluation.scores
        ],
        "misses": [
            {
                "set": miss.item.set,
                "task": miss.item.task,
                "messages": miss.item.messages,
                "expected": miss.item.answer,
                "answer": miss.answer,
            }
            for miss in evaluation.misses
        ],
    }
