"""Divergence against scipy's own, and logits of a model over a text against transformers'."""

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from transformers import AutoModelForCausalLM

from galley import UnsupportedModel
from galley.calibration.forward import TeacherForced
from galley.calibration.measures import Divergence, agreement, following
from galley.settings.engine import EngineSettings
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker


def test_divergence_is_scipys() -> None:
    random = np.random.default_rng(3)
    base = random.normal(size=(40, 50)).astype(np.float32) * 3
    model = (base + random.normal(size=base.shape) * 0.3).astype(np.float32)
    base[:, 7] = model[:, 7] = -np.inf  # masked in both
    after = following([random.integers(8, 50, size=n).tolist() for n in (25, 15)])
    collected = Divergence()
    collected.add(base[:25], model[:25], after[:25])
    collected.add(base[25:], model[25:], after[25:])
    assert list(np.flatnonzero(after < 0)) == [24, 39]
    p, q = softmax(base.astype(float), axis=1), softmax(model.astype(float), axis=1)
    kl = rel_entr(p, q).sum(axis=1)
    loss = collected.loss()
    assert loss.tokens == 38
    assert loss.kl == pytest.approx(kl.mean(), rel=1e-9)
    assert loss.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-9)
    assert loss.top1 == (p.argmax(1) == q.argmax(1)).mean() < 1
    assert loss.perplexity == pytest.approx(
        np.exp(-np.log(q[after >= 0, after[after >= 0]]).mean()), rel=1e-9
    )
    by_token = collected.by_token()
    assert sum(one.positions for one in by_token) == 40
    assert sum(one.positions * one.kl for one in by_token) == pytest.approx(kl.sum(), rel=1e-9)
    first = by_token[0]
    assert first.kl == pytest.approx(kl[p.argmax(1) == first.token].mean(), rel=1e-9)


def test_greedy_texts_agree_up_to_the_first_difference() -> None:
    said = np.array([5, 6, 7])
    assert agreement(np.array([5, 6, 7, 9]), said) == 3
    assert agreement(np.array([5, 1, 7, 9]), said) == 1
    assert agreement(np.array([0, 6, 7, 9]), said) == 0


@pytest.mark.parametrize("variant", ["llama", "mistral-window"])
def test_logits_are_transformers(checkpoint: CheckpointMaker, variant: str) -> None:
    folder = checkpoint(variant)
    ids = random_ids(1, 300)  # several steps
    with torch.inference_mode():
        truth = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(
            torch.tensor([ids])
        ).logits[0]
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    with TeacherForced(settings, folder, longest=300) as model:
        pieces = [(first, logits.copy()) for first, logits in model.logits(ids)]
        again = np.concatenate([logits.copy() for _, logits in model.logits(ids)])
    assert [first for first, _ in pieces] == [0, 256]
    logits = np.concatenate([piece for _, piece in pieces])
    assert np.abs(logits - truth.numpy()).max() < 2e-3
    assert (again == logits).all()


def test_a_speech_model_is_refused(checkpoint: CheckpointMaker) -> None:
    with pytest.raises(UnsupportedModel, match="galley eval speech"):
        TeacherForced(EngineSettings(threads=1), checkpoint("whisper"), longest=16)
