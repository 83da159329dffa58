"""galley eval on the user's own data, against transformers' losses and hand-made answers."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from galley import LLM, RequestError, SamplingParams
from galley.llm.evaluate import TextScorer, ask, is_right, read_questions
from tests.cli.command import galley
from tests.conftest import CheckpointMaker

TEXT = "the cat sat on the mat, and the dog sat on the cat. " * 12 + "ünï ✓"


@pytest.fixture(scope="module")
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, dtype="float32", threads=1) as llm:
        yield llm


def losses(folder: Path, ids: list[int], context: int, stride: int) -> list[float]:
    """The loop of "Perplexity of fixed-length models" in the transformers documentation, token by token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    nats: list[float] = []
    previous = 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        window = torch.tensor([ids[begin:end]])
        with torch.inference_mode():
            logits = model(window).logits[0, :-1]
        each = torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="none")
        nats += each[-(end - previous) :].tolist()
        previous = end
        if end == len(ids):
            return nats
    raise AssertionError


@pytest.mark.parametrize(("context", "stride"), [(512, 100), (40, 20), (64, 63), (33, 1)])
def test_perplexity_is_that_of_transformers(
    llm: LLM, folder: Path, context: int, stride: int
) -> None:
    ids = llm.tokenizer.encode(TEXT)
    assert 100 < len(ids) < 512
    expected = losses(folder, ids, context, stride)
    error: list[int] = []
    scorer = TextScorer(llm, TEXT, context=context, stride=stride)
    result = scorer.run(3, error.append)
    assert result.tokens == len(expected) == len(ids) - 1
    assert result.nats_per_token == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    assert result.perplexity == pytest.approx(math.exp(sum(expected) / len(expected)), rel=1e-3)
    bits = sum(expected) / math.log(2) / len(TEXT.encode())
    assert result.bits_per_byte == pytest.approx(bits, rel=1e-4)
    assert sum(error) == result.windows == scorer.windows


def test_impossible_windows_are_refused(llm: LLM) -> None:
    for text, numbers, error in (
        ("x", {}, "fewer than two tokens"),
        (TEXT, {"context": 513}, "context is 513, expected 2 to 512 tokens"),
        (TEXT, {"context": 1}, "context is 1"),
        (TEXT, {"context": 32, "stride": 32}, "stride is 32, expected 1 to 31"),
        (TEXT, {"stride": 0}, "stride is 0"),
    ):
        with pytest.raises(RequestError, match=error):
            TextScorer(llm, text, **numbers)
    assert TextScorer(llm, TEXT).run(8, lambda _: None).context == 512


def test_answers_to_questions_are_scored(llm: LLM, tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    message = {"role": "user", "content": "the dog"}
    system = {"role": "system", "content": "sit"}
    said = llm.chat("the cat", greedy)[0].text
    error = llm.chat([system, message], greedy)[0].text
    lines: list[dict[str, Any]] = [
        {"prompt": "the cat", "answer": f" {said}\n", "id": 1},
        {"messages": [system, message], "answer": ["no", error]},
        {"prompt": "the cat", "answer": "wrong"},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    questions = read_questions(file)
    counted: list[int] = []
    answered = ask(llm, questions, greedy, match="exact", together=2, advance=counted.append)
    assert [one.said for one in answered] == [said, error, said]
    assert [one.right for one in answered] == [True, True, False]
    assert counted == [2, 1]
    options: dict[str, Any] = {"match": "exact", "together": 2, "advance": lambda _: None}
    [plain] = ask(llm, questions[:1], greedy, plain=True, **options)
    assert plain.said == llm.generate("the cat", greedy)[0].text
    [sat] = ask(llm, questions[:1], greedy, system="sit", **options)
    assert sat.said == llm.chat([system, {"role": "user", "content": "the cat"}], greedy)[0].text
    with pytest.raises(RequestError, match="--plain is for prompts"):
        ask(llm, questions[1:], greedy, plain=True, **options)


def test_which_answers_count_as_right() -> None:
    assert is_right(" Paris\n", ["Rome", "Paris "], "exact")
    assert not is_right("It is Paris.", ["Paris"], "exact")
    assert is_right("It is Paris.", ["Paris"], "contains")
    assert not is_right("It is Rome.", ["Paris", " "], "contains")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2: Input data was truncated"),
        ('{"prompt": "a"}', "line 2: .*missing required field `answer`"),
        ('{"answer": "a"}', "line 2: needs either prompt or messages"),
        ('{"prompt": "a", "messages": [], "answer": "a"}', "line 2: needs either"),
        ('{"prompt": "a", "answer": []}', "line 2: answer is missing"),
        ('{"prompt": 5, "answer": "a"}', "line 2: Expected `str | null`, got `int`"),
    ],
)
def test_wrong_lines_are_refused_by_number(tmp_path: Path, line: str, error: str) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(f'{{"prompt": "a", "answer": "b"}}\n{line}\n')
    with pytest.raises(RequestError, match=error):
        read_questions(file)
    file.write_text("\n")
    with pytest.raises(RequestError, match="is empty"):
        read_questions(file)


def test_both_commands_print_and_write_what_they_measured(
    folder: Path, llm: LLM, tmp_path: Path
) -> None:
    text, questions, page = (
        tmp_path / name for name in ("text.txt", "questions.jsonl", "page.json")
    )
    text.write_text(TEXT)
    model: list[str | Path] = ["--model", folder, "--threads", "1", "--json", page]
    done = galley("eval", "perplexity", text, *model, "--context", "64")
    assert done.returncode == 0, done.stderr
    expected = TextScorer(llm, TEXT, context=64).run(8, lambda _: None)
    assert f"perplexity {expected.perplexity:.4g}, {expected.bits_per_byte:.4f} bits" in done.stdout
    assert f"wrote {page}" in done.stderr
    assert json.loads(page.read_text())["perplexity"] == pytest.approx(expected.perplexity)
    said = llm.chat("a", SamplingParams(temperature=0.0, max_tokens=4))[0].text
    lines = ({"prompt": "a", "answer": said}, {"prompt": "a", "answer": "wrong answer"})
    questions.write_text("\n".join(map(json.dumps, lines)))
    done = galley("eval", "answers", questions, *model, "--max-tokens", "4")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 right = 50.0% (exact match)" in done.stdout
    assert "is not 'wrong answer'" in done.stdout
    answers = json.loads(page.read_text())["answers"]
    assert [one["right"] for one in answers] == [True, False]
