"""The bundled embedding model: retrieval on texts it was not trained on, and its recipe."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from galley import LLM
from galley.demo import EMBED_DIR
from recipes.assistant.glossary import QUESTIONS
from recipes.embed.evaluate import recalls
from recipes.embed.pairs import DOCUMENTS, HELD_OUT_QUESTIONS, QUEUES, held_out_callers
from recipes.embed.train import Recipe, contrastive_loss, run
from tests.cli.command import galley
from tests.embedding.checkpoints import pooled
from tests.embedding.running import cosine
from tests.server.serving import Server

LIMIT = 4_000_000
"""Bytes; the model is part of the wheel."""
TEXTS = ["My router is broken.", "What is a KV cache?", "déjà vu 你好", "wait " * 300]


def nearest(vectors: Sequence[Sequence[float]], documents: Sequence[Sequence[float]]) -> list[int]:
    at: list[int] = (np.array(vectors) @ np.array(documents).T).argmax(axis=1).tolist()
    return at


def test_held_out_wordings_find_their_queue_and_their_entry() -> None:
    assert sum(path.stat().st_size for path in EMBED_DIR.rglob("*") if path.is_file()) <= LIMIT
    assert not set(QUESTIONS) & set(HELD_OUT_QUESTIONS)
    with LLM("galley-demo-embed", threads=1) as llm:
        found = recalls(llm.embed)
    assert min(found.values()) >= 0.95, found


def test_vectors_are_those_of_transformers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBED_DIR)
    truth = pooled(EMBED_DIR, [tokenizer(text)["input_ids"] for text in TEXTS], "mean")
    with LLM("galley-demo-embed", threads=1, dtype="float32") as llm:
        vectors = llm.embed(TEXTS)
    assert all(cosine(a, b) > 0.99999 for a, b in zip(vectors, truth, strict=True))


def test_openais_client_finds_queues(tmp_path: Path) -> None:
    queries = held_out_callers(2)[:32]
    with Server("galley-demo-embed", tmp_path / "log", threads=1) as server, server.openai() as sdk:

        def embed(texts: list[str]) -> list[list[float]]:
            made = sdk.embeddings.create(model="galley-demo-embed", input=texts)
            return [one.embedding for one in made.data]

        found = nearest(embed([text for text, _ in queries]), embed(list(QUEUES.values())))
    right = [list(QUEUES)[at] == queue for at, (_, queue) in zip(found, queries, strict=True)]
    assert np.mean(right) > 0.9


def test_the_command_takes_it_without_a_model() -> None:
    texts = ["my router is broken", DOCUMENTS["home support"], DOCUMENTS["billing"]]
    done = galley("embed", *texts)
    assert done.returncode == 0, done.stderr
    queries, home, billing = (
        np.array(json.loads(line)["embedding"]) for line in done.stdout.splitlines()
    )
    assert queries @ home > queries @ billing


def test_pairs_of_one_label_do_not_repel() -> None:
    rows = torch.eye(3)
    apart = contrastive_loss(rows, rows[[1, 0, 2]], ["a", "b", "c"], 0.1)
    alike = contrastive_loss(rows, rows[[1, 0, 2]], ["a", "a", "c"], 0.1)
    assert float(apart) > 5 > 1 > float(alike)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_recipe_makes_one(tmp_path: Path) -> None:
    shape = Recipe(hidden_size=32, intermediate_size=48, num_hidden_layers=1, steps=12, batch=16)
    losses = run(shape, tmp_path)
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    with LLM(str(tmp_path), threads=1) as llm:
        assert llm.embed(["hello"]).shape == (1, 32)
