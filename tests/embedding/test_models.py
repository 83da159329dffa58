"""Vectors and scores of every family against transformers, and the independence of their bits."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.errors import CheckpointError, GalleyError, UnsupportedModel
from tests.embedding.checkpoints import VARIANTS, make_model, pooled, random_ids, scored
from tests.embedding.running import cosine, loaded, vectors_of

LENGTHS = (1, 2, 17, 64, 90, 33)
PROMPTS = [random_ids(n, seed=n) for n in LENGTHS]
POOLINGS = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken", "max": "max_tokens"}


Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Return a function that makes each model once."""

    @functools.cache
    def make(variant: str, **how: Any) -> Path:
        return make_model(tmp_path_factory.mktemp("models") / variant, variant, **how)

    return make


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"executor": "reference"}, 0.99999),
        ({"executor": "cpu"}, 0.99999),
        ({"executor": "cpu", "weight_dtype": "bf16"}, 0.999),
        ({"executor": "cpu", "weight_dtype": "int8"}, 0.999),
        ({"executor": "cpu", "weight_dtype": "int7"}, 0.998),
    ],
    ids=["reference", "float32", "bf16", "int8", "int7"],
)
def test_vectors_are_those_of_transformers(
    variant: str, settings: dict[str, Any], least: float, model: Maker
) -> None:
    how = "last" if variant == "qwen3" else "mean"
    folder = model(variant, pooling=POOLINGS[how])
    engine = loaded(folder, **settings)
    assert engine.info.tasks == ("embed",)
    assert engine.info.ledger is not None
    assert engine.info.ledger.kv == 0
    got = vectors_of(engine, PROMPTS)
    for ids, vector, expected in zip(PROMPTS, got, pooled(folder, PROMPTS, how), strict=True):
        assert abs(np.linalg.norm(vector) - 1) < 1e-5
        assert cosine(vector, expected) > least, len(ids)
        if least > 0.9999:
            assert np.abs(vector - expected).max() < 1e-4


@pytest.mark.parametrize("how", ["cls", "last", "max"])
def test_poolings(how: str, model: Maker) -> None:
    folder = model("bert", pooling=POOLINGS[how])
    got = vectors_of(loaded(folder), PROMPTS)
    for vector, expected in zip(got, pooled(folder, PROMPTS, how), strict=True):
        assert cosine(vector, expected) > 0.99999


@pytest.mark.parametrize("variant", ["bert", "xlm-roberta", "qwen3", "modernbert"])
@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_scores_of_pairs_are_those_of_transformers(
    variant: str, executor: str, model: Maker
) -> None:
    folder = model(variant, labels=1)
    engine = loaded(folder, executor=executor)
    assert engine.info.tasks == ("rerank",)
    seconds = [7 if variant == "bert" and len(ids) > 7 else 0 for ids in PROMPTS]
    got = [float(v[0]) for v in vectors_of(engine, PROMPTS, seconds=seconds)]
    expected = scored(folder, list(zip(PROMPTS, seconds, strict=True)))
    assert got == pytest.approx(expected, abs=2e-5)
    assert np.std(expected) > 1e-3


@pytest.mark.parametrize("variant", ["bert", "qwen3", "modernbert"])
@pytest.mark.parametrize("settings", [{"executor": "reference"}, {"weight_dtype": "int8"}], ids=str)
def test_bits_do_not_depend_on_the_batch(
    variant: str, settings: dict[str, Any], model: Maker
) -> None:
    folder = model(variant, pooling="mean_tokens")
    together = loaded(folder, max_batch_tokens=512, **settings)
    apart = loaded(folder, max_batch_tokens=64, threads=2, **{**settings})
    expected = [v.tobytes() for v in vectors_of(together, PROMPTS)]
    assert [v.tobytes() for v in vectors_of(apart, PROMPTS[::-1])][::-1] == expected
    assert apart.stats.steps > together.stats.steps == 1
    assert apart.stats.prefill_tokens == together.stats.prefill_tokens == sum(LENGTHS)


def test_dimensions_are_the_first_and_scaled_anew(model: Maker) -> None:
    folder = model("bert", pooling="cls_token")
    engine = loaded(folder)
    [whole], [cut] = (
        vectors_of(engine, PROMPTS[2:3]),
        vectors_of(engine, PROMPTS[2:3], dimensions=9),
    )
    assert cut.shape == (9,)
    assert np.allclose(cut, whole[:9] / np.linalg.norm(whole[:9]), atol=1e-6)


def test_without_files_rows_are_averaged(model: Maker) -> None:
    folder = model("bert")
    [got] = vectors_of(loaded(folder), PROMPTS[3:4])
    assert cosine(got, pooled(folder, PROMPTS[3:4], "mean")[0]) > 0.99999


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("bert", {"hidden_act": "relu"}, "hidden_act"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"num_attention_heads": 5}, "num_attention_heads"),
        ("nomic", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        ("nomic", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
        ("nomic", {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base"),
        ("nomic", {"moe_every_n_layers": 2}, "moe_every_n_layers"),
        ("qwen3", {"is_causal": False}, "is_causal"),
    ],
    ids=str,
)
def test_unsupported_fields_are_refused_and_named(
    variant: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = make_model(tmp_path, variant)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(GalleyError, match=message):
        loaded(folder)


def test_nomic_in_the_words_of_its_first_checkpoints(tmp_path: Path) -> None:
    """The fields have GPT-2's names; scaling that would start at longer texts limits the context."""
    folder = make_model(tmp_path, "nomic", pooling="mean_tokens")
    [expected] = vectors_of(loaded(folder), PROMPTS[3:4])
    path = folder / "config.json"
    config = json.loads(path.read_text())
    names = {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    old = {names.get(name, name): value for name, value in config.items()}
    more = {"activation_function": "swiglu", "auto_map": {"AutoModel": "nomic.Model"}}
    scaled = {"rotary_scaling_factor": 2.0, "max_trained_positions": 64}
    del old["hidden_act"]
    path.write_text(json.dumps({**old, **more, **scaled}))
    engine = loaded(folder)
    assert engine.info.require_text().max_model_len == 64
    [got] = vectors_of(engine, PROMPTS[3:4])
    assert np.array_equal(got, expected)


def test_files_that_are_wrong_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "bert", pooling="mean_tokens")
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "average"}')
    with pytest.raises(UnsupportedModel, match="average"):
        loaded(folder)
    (folder / "modules.json").write_text('[{"type": "models.Pooling", "path": "../x"}]')
    with pytest.raises(CheckpointError, match="modules"):
        loaded(folder)
    with pytest.raises(UnsupportedModel, match="3 labels"):
        loaded(make_model(tmp_path / "labels", "bert", labels=3))
