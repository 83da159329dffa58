"""Vectors without a server: ``galley.LLM`` and ``galley embed``."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import galley
from galley.errors import RequestError, SettingsError
from galley.text.tokenizer import Tokenizer
from tests.cli.command import galley as command
from tests.embedding.checkpoints import make_model, pooled, scored, write_tokenizer
from tests.embedding.running import cosine

TEXTS = ["the router is broken", "my dog sat on the mat, too", "invoice?"]
LONG = "the cat sat on the mat " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "vectors", "bert", pooling="cls_token")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[galley.LLM]:
    with galley.LLM(folder, threads=1) as loaded:
        yield loaded


def test_vectors_of_texts_and_of_token_ids(llm: galley.LLM, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    got = llm.embed(TEXTS)
    assert got.dtype == np.float32
    assert np.array_equal(got, llm.embed(ids))
    for vector, expected in zip(got, pooled(folder, ids, "cls"), strict=True):
        assert cosine(vector, expected) > 0.99999
    assert llm.embed(TEXTS[0], dimensions=5).shape == (1, 5)


def test_the_second_text_has_token_types_if_the_model_uses_them(tmp_path: Path) -> None:
    """``model_input_names`` of tokenizer_config.json, which transformers' tokenizers go by."""
    scores = []
    for types in (True, False):
        folder = make_model(tmp_path / str(types), "bert", labels=1)
        write_tokenizer(folder, types=types)
        encoded = AutoTokenizer.from_pretrained(folder)(TEXTS[0], TEXTS[1])
        assert ("token_type_ids" in encoded) is types
        second = encoded["token_type_ids"].index(1) if types else 0
        expected = scored(folder, [(encoded["input_ids"], second)])
        with galley.LLM(folder, threads=1, weight_dtype="float32") as llm:
            assert llm.rerank(TEXTS[0], [TEXTS[1]]) == pytest.approx(expected, abs=2e-5)
        scores += expected
    assert abs(scores[0] - scores[1]) > 1e-3


def test_what_cannot_be_honored_is_refused(llm: galley.LLM) -> None:
    with pytest.raises(RequestError, match=r"texts\[1\] has 242 tokens.*truncate=True"):
        llm.embed(["cat", LONG])
    assert llm.embed(["cat", LONG], truncate=True).shape == (2, 48)
    with pytest.raises(RequestError, match="cannot rerank; it can embed"):
        llm.rerank("a", ["b"])
    with pytest.raises(RequestError, match="cannot generate"):
        llm.generate("the cat")
    with pytest.raises(RequestError, match="cannot generate; it can embed"):
        llm.chat("the cat")
    with pytest.raises(RequestError, match="cannot generate; it can embed"):
        list(llm.chat_stream("the cat"))
    with pytest.raises(RequestError, match="these prompts: none"):
        llm.embed("cat", prompt_name="query")
    with pytest.raises(SettingsError, match="quality_gate"):
        galley.LLM(llm.info.path, quality_gate="kl=1")


def test_pairs_are_cut_as_transformers_cuts_them(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "bert", labels=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    mine = Tokenizer.load(folder)
    words = TEXTS[1].split()
    for a, b, most in [(3, 30, 20), (30, 3, 20), (30, 30, 21), (30, 30, 22), (9, 8, 20), (2, 2, 9)]:
        first, second = (" ".join((words * 9)[:n]) for n in (a, b))
        theirs = tokenizer(
            first,
            second,
            truncation="longest_first",
            max_length=most,
            return_token_type_ids=True,
        )
        [(ids, typed)] = mine.encode_pairs(first, [second], most)
        assert (ids, typed) == (theirs["input_ids"], theirs["token_type_ids"].index(1)), (a, b)
    with galley.LLM(folder, threads=1) as llm:
        pairs = mine.encode_pairs(TEXTS[0], TEXTS)
        assert llm.rerank(TEXTS[0], TEXTS) == pytest.approx(scored(folder, pairs), abs=2e-5)


def test_the_command_writes_a_line_for_each_text(
    llm: galley.LLM, folder: Path, tmp_path: Path
) -> None:
    expected = llm.embed(TEXTS)
    texts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    flags = ("--model", str(folder), "--threads", "1")
    done = command("embed", *flags, "--file", texts, "--output", output)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(line["index"], line["text"]) for line in lines] == list(enumerate(TEXTS))
    assert np.allclose([line["embedding"] for line in lines], expected, atol=1e-6)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": TEXTS}}
    texts.write_text(json.dumps(line))
    done = command("batch", texts, tmp_path / "batch.jsonl", *flags)
    assert done.returncode == 0, done.stderr
    [result] = map(json.loads, (tmp_path / "batch.jsonl").read_text().splitlines())
    vectors = [one["embedding"] for one in result["response"]["body"]["data"]]
    assert np.allclose(vectors, expected, atol=1e-6)
    texts.write_text('{"text": 5}\n')
    refused = command("embed", *flags, "--file", texts)
    assert refused.returncode == 1
    assert "line 1" in refused.stderr
