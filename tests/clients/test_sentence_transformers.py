"""Vectors and scores of every family, compared with sentence-transformers on the same folders.

It is not installed for the other tests: ``make test-clients`` installs and runs them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import galley
from tests.embedding.checkpoints import VARIANTS, make_model
from tests.embedding.running import cosine

TEXTS = [
    "the router is broken, can you help please",
    "invoice?",
    "my dog sat on the mat, too. what does a red light mean",
    "call back tomorrow " * 12,
]
POOLINGS = {"qwen3": "lasttoken", "modernbert": "cls_token"}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("weight_dtype", "least"), [("float32", 0.99999), ("int8", 0.999)])
def test_vectors(variant: str, weight_dtype: Any, least: float, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = make_model(tmp_path, variant, pooling=POOLINGS.get(variant, "mean_tokens"))
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode(TEXTS)
    with galley.LLM(folder, threads=1, weight_dtype=weight_dtype) as llm:
        got = llm.embed(TEXTS)
    for one, other in zip(got, expected, strict=True):
        assert cosine(one, other) > least
        assert abs(np.linalg.norm(one) - 1) < 1e-5


@pytest.mark.parametrize("variant", ["bert", "xlm-roberta", "modernbert"])
def test_scores(variant: str, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = make_model(tmp_path, variant, labels=1)
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    expected = theirs.predict([(TEXTS[0], text) for text in TEXTS[1:]])
    with galley.LLM(folder, threads=1, weight_dtype="float32") as llm:
        got = llm.rerank(TEXTS[0], TEXTS[1:])
    assert got == pytest.approx(expected.tolist(), abs=2e-5)
    assert np.std(got) > 1e-3
