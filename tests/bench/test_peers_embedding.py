"""The comparison of embedding models: texts reach every contender whole, and vectors are the same."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import embeddings
from benchmarks.peers import galley_embed
from benchmarks.peers.bert_checkpoint import write_bert
from benchmarks.peers.child import Child
from benchmarks.peers.embedding import Padded, text
from benchmarks.peers.turns import Turns
from transformers import AutoTokenizer, BertModel

TEXTS = [[1005, 2000, 3000], [7, 30000], list(range(1000, 1040))]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "tiny-bert"
    write_bert(folder, "tiny-bert")
    return folder


def test_words_are_tokenized_to_the_ids_that_they_stand_for(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert [tokenizer(text(ids))["input_ids"] for ids in TEXTS] == TEXTS


def test_galley_and_padded_batches_make_the_same_vectors(checkpoint: Path, tmp_path: Path) -> None:
    import torch

    model = BertModel.from_pretrained(checkpoint, add_pooling_layer=False).eval()

    def rows(batches: object) -> list[object]:
        made = []
        for ids, mask in batches:  # type: ignore[attr-defined]
            with torch.no_grad():
                out = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state
            made.append(out.numpy())
        return made

    expected = Padded(rows, sizes=(2,)).embed(TEXTS)
    child = Child(galley_embed.PEER, "float32", checkpoint, threads=1, home=tmp_path)
    try:
        for ids, vector in zip(TEXTS, expected, strict=True):
            assert np.dot(child.ask({"vector": ids}), vector) > 0.99999
        assert len(child.ask({"texts": TEXTS})) == 1
    finally:
        child.close()


def test_float32_is_compared_with_float32_and_every_kind_with_the_best() -> None:
    turns = Turns({"texts": {"texts": TEXTS}})
    seconds = {
        "galley_embed float32": 4.0,
        "galley_embed bf16": 2.0,
        "galley_embed int8": 1.0,
        "onnx_runtime float32": 8.0,
        "onnx_runtime int8": 3.0,
    }
    turns.seconds = {name: {"texts": [taken]} for name, taken in seconds.items()}
    [figure] = embeddings.figures("minilm", turns, dict.fromkeys(seconds, 1.0))
    assert figure.measured == (2.0, 0.75, 1.5, 3.0)
    assert figure.peer == "ONNX Runtime float32, ONNX Runtime int8"
