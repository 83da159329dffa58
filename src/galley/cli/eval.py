"""``galley eval``: measurements of the quality of a model's answers or transcripts."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.eval_own import answers, perplexity
from galley.cli.eval_quality import quality
from galley.cli.options import MODEL_HELP, Command, Flags, Group, start_logging, with_flags
from galley.cli.report import check_folders, json_option, write_json
from galley.cli.speech_options import speech_options, transcribe_options
from galley.cli.terminal import progress, table
from galley.cli.transcribe import speech_settings
from galley.settings.engine import EngineSettings
from galley.types import SamplingParams

if TYPE_CHECKING:
    from galley.demo.evaluate import Evaluation
    from galley.demo.heldout import Message
    from galley.llm.llm import LLM
    from galley.speech.evaluate import Scores, Transcribed

_LONGEST_ANSWER: Final = 256
"""Most tokens of an answer. No correct answer has more characters; longer ones are wrong anyway."""


@click.group("eval", cls=Group)
def eval_group() -> None:
    """Measure the quality of a model."""


eval_group.add_command(perplexity)
eval_group.add_command(answers)
eval_group.add_command(quality)


@eval_group.command(cls=Command)
@with_flags(EngineSettings)
@click.argument("model", required=False, help=MODEL_HELP)
@json_option
def demo(flags: Flags, model: str | None, json_file: Path | None) -> None:
    """Score the call-center tasks on both held-out sets, by exact match of greedy answers.

    Set 1 holds out names, accounts and numbers; set 2 also holds out the wordings.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    check_folders(json=json_file)
    from galley.demo import heldout
    from galley.demo.evaluate import evaluate
    from galley.llm.llm import LLM

    total = sum(len(heldout.read(number)) for number in heldout.SETS)
    with LLM.from_settings(settings) as llm, progress("answering", total) as bar:
        answer = _answerer(llm, settings.running_limit, bar.update)
        evaluation = evaluate(answer)
    _print_table(evaluation)
    write_json(json_file, _as_json(evaluation))


@eval_group.command(cls=Command)
@with_flags(EngineSettings, model=True)
@click.argument(
    "manifest",
    type=click.Path(path_type=Path),
    help='JSON lines: {"audio": "call.wav", "text": "what is said"}',
)
@speech_options
@json_option
def speech(flags: Flags, manifest: Path, json_file: Path | None, **wanted: Any) -> None:
    """Measure a speech model's word and character error rates and its real-time factor.

    Case and punctuation do not count. The real-time factor is seconds of work for each second of audio.
    """
    settings = speech_settings(flags)
    start_logging(settings)
    check_folders(json=json_file)
    from galley.speech import require_extra

    require_extra()
    from galley.speech.evaluate import read_manifest, score, transcribe_all
    from galley.speech.transcribe import Transcriber

    options = transcribe_options(**wanted)
    samples = read_manifest(manifest)
    with (
        Transcriber.from_settings(settings) as transcriber,
        progress("transcribing", len(samples)) as bar,
    ):
        transcribed = transcribe_all(transcriber, samples, options, bar.update)
    scores = score(transcribed)
    print(
        f"{len(transcribed)} recordings, {scores.audio_seconds:.0f} s: WER {scores.wer:.1%}, "
        f"CER {scores.cer:.1%}, real-time factor {scores.real_time_factor:.3f}"
    )
    write_json(json_file, _speech_json(transcribed, scores))


def _speech_json(transcribed: "Sequence[Transcribed]", scores: "Scores") -> dict[str, Any]:
    return {
        **asdict(scores),
        "recordings": [
            {
                "audio": str(one.entry.audio),
                "expected": one.entry.text,
                "text": one.text,
                "audio_seconds": round(one.audio_seconds, 3),
                "seconds": round(one.seconds, 3),
            }
            for one in transcribed
        ],
    }


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
