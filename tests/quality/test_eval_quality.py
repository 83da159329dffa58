"""galley eval quality on checkpoints with a known loss: none, some, and that of another model."""

import json
import shutil
from pathlib import Path

import pytest

from galley import LLM, RequestError
from galley.quality.texts import own_texts, read_texts
from tests.checkpoints import make_checkpoint
from tests.cli.command import galley
from tests.conftest import CheckpointMaker

TEXT = "the cat sat on the mat, and the dog sat on the cat. " * 40


@pytest.fixture(scope="module")
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama")


def test_the_table_the_file_and_the_page_say_what_was_measured(
    folder: Path, tmp_path: Path
) -> None:
    data, figures, page = tmp_path / "own.jsonl", tmp_path / "q.json", tmp_path / "q.html"
    lines = [{"prompt": f"the cat {i}", "answer": "no such answer"} for i in range(12)]
    data.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    arguments = ("--tokens", 256, "--context", 64, "--max-tokens", 8, "--data", data)
    outputs = ("--sensitivity", "--json", figures, "--html", page)
    done = galley(
        *(
            "eval",
            "quality",
            folder,
            "--weight-dtype",
            "int4",
            "--also",
            "int8",
            "--also",
            "float32",
        ),
        *("--against-quantize", "float32", *arguments, *outputs),
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(figures.read_text())
    losses = [one["loss"] for one in read["measured"]]
    assert losses[0]["kl"] > 4 * losses[1]["kl"] > 0
    assert losses[2]["kl"] == 0
    assert losses[2]["top1"] == 1
    assert losses[2]["perplexity"] == losses[2]["base_perplexity"] == losses[0]["base_perplexity"]
    same = read["measured"][2]
    assert same["greedy_tokens"] == same["greedy_length"] > read["measured"][0]["greedy_tokens"]
    sizes = [one["side"]["weight_bytes"] for one in read["measured"]]
    assert sizes[0] < sizes[1] < sizes[2] == read["base"]["weight_bytes"]
    assert read["base"]["questions"] == 12
    assert read["source"] == str(data)
    assert len(read["parts"]) == 8
    assert all(
        four["kl"] > eight["kl"] > 0 for four, eight, _ in (p["choices"] for p in read["parts"])
    )
    header, _, *rows = done.stdout.splitlines()
    assert header.split() == [
        *("base:", "float32"),
        *("int4", "x", "int8"),
        *("int8", "x", "int8"),
        "float32",
    ]
    assert "int4 x int8: outside the suggested limits" in done.stdout
    assert "Try --activations bfloat16 first" in done.stdout
    assert "float32: within the suggested limits" in done.stdout
    assert any(row.startswith("right answers") and "0 of 12" in row for row in rows)
    written = page.read_text(encoding="utf-8")
    assert f"{losses[0]['kl']:.2g}" in written
    assert written.count("<figure>") == 4
    assert "<script" not in written
    assert "http" not in written.replace("http-equiv", "")


def test_the_base_of_a_quantized_checkpoint_rounds_no_inputs(folder: Path, tmp_path: Path) -> None:
    quantized, figures = tmp_path / "int4", tmp_path / "q.json"
    made = galley(
        *("quantize", folder, quantized, "--method", "rtn", "--tokens", 128, "--context", 32)
    )
    assert made.returncode == 0, made.stderr
    arguments = ("eval", "quality", quantized, "--tokens", 128, "--context", 64, "--json", figures)
    done = galley(*arguments, "--against-quantize", "float32")
    assert done.returncode == 0, done.stderr
    read = json.loads(figures.read_text())
    base, side = read["base"], read["measured"][0]["side"]
    assert (base["weights"], base["activations"]) == ("int4", "float32")
    assert (side["weights"], side["activations"]) == ("int4", "int8")
    assert read["measured"][0]["loss"]["kl"] > 0
    assert done.stdout.split("\n")[0].split() == [
        "base:",
        *["int4", "x", "float32", "int4", "x", "int8"],
    ]
    exact = galley(*arguments, "--activations", "float32", "--kv-dtype", "float32")
    assert exact.returncode == 0, exact.stderr
    assert json.loads(figures.read_text())["measured"][0]["loss"]["kl"] == 0


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", "llama", vocab_size=330)
    done = galley("eval", "quality", other, "--against", folder, "--tokens", 64)
    assert done.returncode == 2
    assert "330 tokens" in done.stderr
    assert "same vocabulary" in done.stderr


def test_texts_of_files(folder: Path, tmp_path: Path) -> None:
    plain, lines, wrong = tmp_path / "a.txt", tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    plain.write_text(TEXT, encoding="utf-8")
    lines.write_text('{"text": "the cat sat"}\n\n{"text": "a dog sat on the mat"}\n')
    wrong.write_text('{"text": "fine"}\n{"texts": "not"}\n')
    with LLM(folder, threads=1) as llm:
        read = read_texts(llm, plain, context=50, tokens=120)
        assert [len(window) for window in read.windows] == [50, 50, 20]
        ids = [token for window in read.windows for token in window]
        assert ids == llm.tokenizer.encode(TEXT)[:120]
        several = read_texts(llm, lines, context=50, tokens=1000)
        assert several.windows == tuple(
            tuple(llm.tokenizer.encode(text)) for text in ("the cat sat", "a dog sat on the mat")
        )
        with pytest.raises(RequestError, match="line 2"):
            read_texts(llm, wrong, context=50, tokens=100)
        with pytest.raises(RequestError, match="cannot read"):
            read_texts(llm, tmp_path / "nothing.txt", context=50, tokens=100)
        with pytest.raises(RequestError, match="line 1: a text has no answer"):
            read_texts(llm, lines, context=50, tokens=1000, mark_answers=True)
        with pytest.raises(RequestError, match="JSON lines"):
            read_texts(llm, plain, context=50, tokens=1000, mark_answers=True)
        own = own_texts(llm, context=32, tokens=100)
        assert [len(window) for window in own.windows] == [32] * 4
        assert len(set(own.windows)) == 4
        assert own == own_texts(llm, context=32, tokens=100)


def test_what_the_assistant_writes_is_marked(folder: Path, tmp_path: Path) -> None:
    turns = [
        ("user", "the cat"),
        ("assistant", "sat on it"),
        ("user", "mat"),
        ("assistant", "a dog"),
    ]
    messages = [{"role": role, "content": text} for role, text in turns]
    data = tmp_path / "a.jsonl"
    question = {"prompt": "the cat sat", "answer": ["on a mat", "there"]}
    data.write_text("\n".join(json.dumps(x) for x in ({"messages": messages}, question)))
    unanswered = tmp_path / "b.jsonl"
    unanswered.write_text(json.dumps({"messages": messages[:1]}))
    with LLM(folder, threads=1) as llm:
        read = read_texts(llm, data, context=200, tokens=1000, mark_answers=True)
        said = [
            llm.tokenizer.decode([t for t, own in zip(window, marks, strict=True) if own])
            for window, marks in zip(read.windows, read.answers, strict=True)
        ]
        # ChatML: each turn ends in a token and a line feed.
        assert [text.replace("<|im_end|>", "").split("\n") for text in said] == [
            ["sat on it", "a dog", ""],
            ["on a mat", ""],
        ]
        whole = [llm.encode_chat(messages, add_generation_prompt=False)]
        assert [list(window) for window in read.windows[:1]] == whole
        cut = read_texts(llm, data, context=12, tokens=1000, mark_answers=True)
        assert all(any(marks[1:]) for marks in cut.answers)
        assert 0 < cut.tokens < read.tokens
        assert sum(map(sum, cut.answers)) == sum(map(sum, read.answers))
        with pytest.raises(RequestError, match="line 1: cannot locate the assistant's messages"):
            read_texts(llm, unanswered, context=50, tokens=100, mark_answers=True)
    plain = tmp_path / "without-template"
    shutil.copytree(folder, plain, ignore=shutil.ignore_patterns("*.jinja"))
    data.write_text(json.dumps({"prompt": "the cat", "answer": " sat on it"}))
    with LLM(plain, threads=1) as llm:
        assert not llm.has_chat_template
        read = read_texts(llm, data, context=200, tokens=1000, mark_answers=True)
        [window], [marks] = read.windows, read.answers
        written = [token for token, own in zip(window, marks, strict=True) if own]
        assert llm.tokenizer.decode(written) == " sat on it"
