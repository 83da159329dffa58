"""Models saved by sentence-transformers: the same texts give its vectors and scores."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from galley import LLM
from galley.errors import CheckpointError, UnsupportedModel
from galley.models.sentence_files import longest_text, read_sentence_files
from galley.text.tokenizer import Tokenizer
from tests.embedding.checkpoints import make_model
from tests.embedding.running import cosine
from tests.formats.peer_files.sentence_models import EMBEDDERS, RERANKERS, SIZES, TEXTS

FOLDER = Path(__file__).parents[1] / "formats/peer_files/sentences"
MADE = np.load(FOLDER / "made.npz")


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_are_those_that_it_makes(name: str) -> None:
    expected = MADE[name]
    with LLM(str(FOLDER / name), dtype="float32", weight_cache=False, threads=1) as llm:
        got = llm.embed(TEXTS, truncate=True)
        assert got.shape == expected.shape
        for one, other in zip(got, expected, strict=True):
            assert cosine(one, other) > 0.99999
            if name == "truncated":  # Galley normalizes them to length 1 again
                other = other / np.linalg.norm(other)
            assert np.abs(one - other).max() < 1e-4
        if name == "truncated":
            assert llm.embed(TEXTS, truncate=True, dimensions=4).shape == (len(TEXTS), 4)
            assert llm.embed(TEXTS, truncate=True, dimensions=16).shape == (len(TEXTS), 16)


@pytest.mark.parametrize("name", sorted(set(RERANKERS) - {"rerank-tanh"}))
def test_scores_are_those_that_it_makes(name: str) -> None:
    with LLM(str(FOLDER / name), dtype="float32", weight_cache=False, threads=1) as llm:
        got = llm.rerank(TEXTS[0], TEXTS)
    assert got == pytest.approx(MADE[name].tolist(), abs=1e-4)
    outside = not all(0 <= score <= 1 for score in got)
    assert outside is (name == "rerank-identity")


def test_another_activation_of_scores_is_refused_and_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"config_sentence_transformers.json: .*Tanh"):
        LLM(str(FOLDER / "rerank-tanh"), threads=1)


@pytest.mark.parametrize(
    ("files", "longest"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 7}}, 7),
        ({"sentence_xlm-roberta_config.json": {"max_seq_length": 8}}, 8),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, 40),
        ({"sentence_bert_config.json": {}, "tokenizer_config.json": {"model_max_length": 9}}, 9),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, None),
        ({"tokenizer_config.json": {}}, None),
    ],
)
def test_the_longest_text_is_what_the_files_say(
    files: dict[str, object], longest: int | None, tmp_path: Path
) -> None:
    for name in ("tokenizer_config.json", "modules.json"):
        shutil.copy(FOLDER / "mean" / name, tmp_path / name)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert longest_text(tmp_path) == longest


@pytest.mark.parametrize(
    ("said", "poolings"),
    [
        ({"pooling_mode": "max"}, ("max",)),
        ({"pooling_mode": ["max"]}, ("max",)),
        ({"pooling_mode": ["weightedmean", "cls"]}, ("weightedmean", "cls")),
        (
            {f"pooling_mode_{k}": True for k in ("mean_tokens", "max_tokens", "cls_token")},
            ("cls", "max", "mean"),
        ),
        (
            {f"pooling_mode_{k}": True for k in ("lasttoken", "weightedmean_tokens")},
            ("weightedmean", "last"),
        ),
        ({"pooling_mode_mean_tokens": False}, ("mean",)),
        ({"pooling_mode": "average"}, None),
        ({"pooling_mode": ["cls", 3]}, None),
        ({"pooling_mode": "cls", "include_prompt": False}, None),
    ],
)
def test_poolings_in_the_order_that_it_has_them(
    said: dict[str, object], poolings: tuple[str, ...] | None, tmp_path: Path
) -> None:
    folder = shutil.copytree(FOLDER / "mean", tmp_path / "model")
    (folder / "1_Pooling/config.json").write_text(json.dumps(said))
    if poolings is None:
        with pytest.raises(UnsupportedModel, match="1_Pooling"):
            read_sentence_files(folder, {}, "mean")
    else:
        assert read_sentence_files(folder, {}, "mean").pooling == poolings


def test_texts_are_lowercased_first(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "bert", **SIZES)
    plain = Tokenizer.load(folder)
    assert plain.encode("ROUTER ÄÖ") == plain.encode("router äö")
    shutil.copytree(FOLDER / "lower-case", folder, dirs_exist_ok=True)
    lower = Tokenizer.load(folder)
    for text in ("ROUTER", "my Router, IS", "ÄRGER"):
        assert lower.encode(text) == lower.encode(text.lower())
        assert lower.encode_plain(text) == lower.encode_plain(text.lower())
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": "yes"}')
    with pytest.raises(CheckpointError, match="do_lower_case"):
        Tokenizer.load(folder)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": false}')
    cased = Tokenizer.load(folder)
    assert cased.encode("ROUTER") != cased.encode("router")
