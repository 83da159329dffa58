"""The bundled draft model: its accepted tokens with the bundled model, and its recipe."""

from pathlib import Path
from typing import Any

import numpy as np

from galley import LLM, SamplingParams
from galley.calibration.forward import TeacherForced
from galley.demo import DRAFT_DIR, MODEL_DIR, heldout
from galley.demo.heldout import Message
from galley.formats.vocabulary import first_difference
from galley.settings.engine import EngineSettings
from galley.train.trainer import Options
from recipes.assistant.tokenizer import encode_turns, load_tokenizer
from recipes.draft.train import Recipe, Shape, run

GREEDY = SamplingParams(temperature=0.0, max_tokens=256)
LIMIT = 2_000_000
"""Bytes; the model is part of the wheel."""


def test_it_says_mostly_what_the_demo_model_says() -> None:
    assert sum(path.stat().st_size for path in DRAFT_DIR.iterdir()) <= LIMIT
    assert first_difference(MODEL_DIR, DRAFT_DIR) is None
    tokenizer = load_tokenizer(MODEL_DIR)
    exact = EngineSettings(dtype="float32", threads=1)
    same = written = 0
    with (
        TeacherForced(exact, MODEL_DIR, longest=512) as model,
        TeacherForced(exact, DRAFT_DIR, longest=512) as draft,
    ):
        for item in heldout.read(1)[::10]:
            answer: Message = {"role": "assistant", "content": item.answer}
            ids, own = encode_turns(tokenizer, [*item.messages, answer])
            agrees = np.concatenate(
                [
                    p.argmax(axis=1) == q.argmax(axis=1)
                    for (_, p), (_, q) in zip(model.logits(ids), draft.logits(ids), strict=True)
                ]
            )
            rows = np.flatnonzero(own) - 1
            same, written = same + int(agrees[rows].sum()), written + len(rows)
    assert same > 0.65 * written


def test_it_drafts_and_changes_no_text() -> None:
    conversations = [item.messages for item in heldout.read(1) if item.task == "ticket"][:4]
    texts = []
    with_draft: dict[str, Any] = {"draft_model": "galley-demo-draft", "speculation": "draft"}
    for settings in ({}, with_draft):
        with LLM("galley-demo", threads=1, **settings) as llm:
            texts.append([output.choices[0].text for output in llm.chat(conversations, GREEDY)])
    assert texts[0] == texts[1]


def test_the_recipe_makes_one(tmp_path: Path) -> None:
    recipe = Recipe(conversations=24, copies=8)
    shape = Shape(hidden_size=32, intermediate_size=48, num_attention_heads=2, head_dim=16)
    options = Options(steps=2, batch_tokens=256, kl_weight=1.0)
    report = run(recipe, shape, options, tmp_path / "out", tmp_path / "work", 1)
    assert report.after.kl < report.before.kl
    assert first_difference(MODEL_DIR, tmp_path / "out") is None
