"""Plans of models that compute vectors or scores of whole texts: arithmetic, and the engine's figures."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from galley.engine.loaders import load
from galley.errors import SettingsError
from galley.formats.json_file import read_json
from galley.formats.source import BUNDLED_EMBED, resolve_model
from galley.models.registry import build_program
from galley.models.whole_texts import over_whole_texts
from galley.plan.predict import predict
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load
from galley.settings.engine import EngineSettings
from tests.plan.shapes import BERT, EXACT, LLAMA_7B, MACHINE, MISTRAL, planned


def whole_texts(config: dict[str, Any]) -> ModelSizes:
    program = build_program(config)
    texts = over_whole_texts(program, program.shapes, all_rows=True)
    return ModelSizes.of(texts, "bf16", "bfloat16")


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [(BERT, -1, -1), (LLAMA_7B, -1, 0), (MISTRAL, 1023, 0)],
    ids=["encoder", "decoder", "window"],
)
@pytest.mark.parametrize("tokens", [1, 5, 1500])
def test_attention_of_a_text_is_the_sum_over_its_rows(
    config: dict[str, Any], before: int, after: int, tokens: int
) -> None:
    seen = sum(
        1
        + (row if before < 0 else min(before, row))
        + (tokens - 1 - row if after < 0 else min(after, tokens - 1 - row))
        for row in range(tokens)
    )
    a_row = 4 * config["hidden_size"] * config["num_hidden_layers"]
    assert whole_texts(config).text_operations(tokens) == a_row * seen


def test_whole_texts_are_their_arithmetic() -> None:
    model = whole_texts(BERT)
    load = Load(prompt=100, output=0, concurrency=8)
    found = predict(model, MACHINE, load, EXACT)
    assert found is not None
    linear = max(500 * model.row_operations / 300e12, model.weights_read(500) / 2000e9)
    step = linear + 5 * model.text_operations(100) / 300e12
    assert found.step == pytest.approx(step)
    assert found.ttft == pytest.approx(8 / 5 * step)
    assert found.tokens_per_second == pytest.approx(500 / step)
    assert found.cost == pytest.approx(2 / 3600 / (500 / step) * 1e6)
    assert found.memory.kv == 0
    assert found.memory.weights == model.weights
    alone = predict(model, MACHINE, dataclasses.replace(load, prompt=512), EXACT)
    assert alone is not None
    assert alone.ttft == pytest.approx(8 * alone.step)


@pytest.mark.parametrize("precision", ["float32", "bf16", "int8"])
def test_the_engine_of_embeddings_says_the_same(precision: Any) -> None:
    folder = resolve_model(BUNDLED_EMBED)
    info = load(EngineSettings(weight_dtype=precision, threads=1, weight_cache=False), folder).info
    program = build_program(read_json(folder / "config.json"))
    texts = over_whole_texts(program, program.shapes, all_rows=True)
    model = ModelSizes.of(texts, precision, "bfloat16")
    assert info.ledger is not None
    assert model.weights == info.ledger.weights
    assert model.parameters == info.ledger.parameters
    assert model.row_operations == info.require_program().costs.row_operations
    assert model.kv_bytes(100) == info.ledger.kv == 0


@pytest.mark.parametrize(
    ("config", "modules"),
    [
        (BERT, False),
        (LLAMA_7B | {"architectures": ["LlamaForSequenceClassification"]}, False),
        (LLAMA_7B, True),
    ],
    ids=["encoder", "reranker", "decoder of embeddings"],
)
def test_models_of_whole_texts_are_planned_as_such(
    tmp_path: Path, config: dict[str, Any], modules: bool
) -> None:
    if modules:
        (tmp_path / "modules.json").write_text("[]")
    page = tmp_path / "plan.json"
    result = planned(tmp_path, "--ttft", "5", "--json", str(page), config=config)
    assert result.exit_code == 0, result.output
    assert "of 512 tokens: no KV cache, no output" in result.output
    assert "per million tokens of texts" in result.output
    assert "TPOT" not in result.output
    assert {p["memory"]["kv"] for p in json.loads(page.read_text())["predictions"]} == {0}
    for flags in (["--output", "5"], ["--tpot", "1"], ["--measure"], ["--experts", "disk"]):
        refused = planned(tmp_path, *flags, config=config)
        assert isinstance(refused.exception, SettingsError)
        assert str(refused.exception).startswith(" ".join(flags).rstrip(" 15"))
