"""galley eval demo: prompts, counts, output."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from galley import LLM, SamplingParams
from galley.cli.eval import _answerer, _as_json, _print_table
from galley.demo import heldout
from galley.demo.evaluate import Evaluation, evaluate
from galley.demo.heldout import Message

from .command import galley


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(checkpoint, threads=1) as llm:
        yield llm


def test_answers_are_greedy_in_order_and_counted(llm: LLM) -> None:
    conversations: list[list[Message]] = [
        [{"role": "user", "content": text}]
        for text in ("the cat", "a dog", "the mat sat", "on", "")
    ]
    counted: list[int] = []
    said = _answerer(llm, 2, counted.append)(conversations)
    assert counted == [2, 2, 1]
    greedy = SamplingParams(temperature=0.0, max_tokens=256)
    assert said == [llm.chat(messages, greedy)[0].text for messages in conversations]


def knows_all_but_every_tenth() -> Evaluation:
    items = [item for number in heldout.SETS for item in heldout.read(number)]
    right = {json.dumps(item.messages): item.answer for item in items}

    def answer(conversations: Sequence[list[Message]]) -> list[str]:
        texts = [right[json.dumps(messages)] for messages in conversations]
        return ["wrong" if i % 10 == 0 else text for i, text in enumerate(texts)]

    return evaluate(answer)


def test_the_table_and_the_file_say_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = knows_all_but_every_tenth()
    _print_table(evaluation)
    rows = capsys.readouterr().out.splitlines()
    assert sum("90.0%" in row and "95%" in row and "missed" in row for row in rows) == 3
    assert sum("90.0%" in row and "85%" in row and "reached" in row for row in rows) == 3
    page = _as_json(evaluation)
    assert page["passed"] is False
    assert [score["rate"] for score in page["scores"]] == [0.9] * 6
    assert {score["task"] for score in page["scores"]} == {"ticket", "queue", "redact"}
    assert len(page["misses"]) == 60
    assert page["misses"][0]["answer"] == "wrong"
    assert json.loads(json.dumps(page)) == page


def test_an_unwritable_file_is_reported_before_any_work(tmp_path: Path) -> None:
    done = galley("eval", "demo", tmp_path, "--json", tmp_path / "nowhere" / "scores.json")
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr
    assert done.stderr.count("\n") == 1
