"""The quality gate: an accurate model passes, a degraded one does not start; the error has a remedy."""

import json
from pathlib import Path

import httpx
import pytest

from galley import SettingsError, UnsupportedModel
from galley.calibration import gate
from galley.calibration.layerwise import Layerwise
from galley.engine.loaders import load_engine
from galley.settings.engine import EngineSettings
from galley.settings.quality_gate import QualityGate
from tests.cli.command import galley
from tests.conftest import CheckpointMaker
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("quality_gate")

FIGURES = {"kl": 0.01, "kl99": 0.2, "top1": 0.95}


def settings(quality_gate: str, **changes: object) -> EngineSettings:
    return EngineSettings(
        threads=1,
        kv_cache_tokens=1024,
        quality_gate=quality_gate,
        **changes,  # type: ignore[arg-type]
    )


def test_limits_are_read_and_kept() -> None:
    read = QualityGate.parse(" kl=0.02, top1=0.97,kl99=0.1")
    assert read.misses({**FIGURES, "top1": 0.98, "kl99": 0.1}) == []
    first, second = read.misses(FIGURES)
    assert first == "top1 is 0.95, same likeliest token at least 0.97"
    assert second.startswith("kl99 is 0.2")
    assert QualityGate.parse(str(read)) == read
    assert QualityGate.parse("").misses(FIGURES) == []
    assert QualityGate.parse("kl=0.1").misses({**FIGURES, "kl": float("nan")})


@pytest.mark.parametrize("text", ["kl", "kl=-1", "kl=nan", "top1=97", "loss=1", "kl=1,kl=2"])
def test_wrong_limits_name_themselves(text: str) -> None:
    with pytest.raises(SettingsError, match="quality_gate"):
        settings(text)


def test_a_model_that_loses_too_much_is_refused_with_what_would_pass(
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("llama")
    with pytest.raises(UnsupportedModel) as refused:
        load_engine(settings("kl=0.02,top1=0.8", weight_dtype="int4"), folder)
    said = str(refused.value)
    assert "as int4" in said
    assert "mean KL divergence at most 0.02" in said
    assert "weight_dtype int8" in said
    with pytest.raises(UnsupportedModel, match="the checkpoint's own type"):
        load_engine(settings("kl=0.0000001", weight_dtype="int4"), folder)


def test_inputs_are_tried_before_more_bytes(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    losses = {}
    for inputs in ("int8", "bfloat16"):
        served = settings("kl=9", weight_dtype="int8", activations=inputs, weight_cache=False)
        engine = load_engine(served, folder)
        assert engine.info.weights is not None
        losses[inputs] = engine.info.weights.kl
        engine.close()
    assert losses["bfloat16"] is not None
    assert losses["int8"] is not None
    assert losses["bfloat16"] < losses["int8"]
    between = (losses["bfloat16"] * losses["int8"]) ** 0.5
    with pytest.raises(
        UnsupportedModel, match=r"settings that pass: activations bfloat16 with the same weights"
    ):
        load_engine(settings(f"kl={between}", weight_dtype="int8", weight_cache=False), folder)


def test_a_kind_of_half_the_bytes_is_tried_before_float32(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    with pytest.raises(
        UnsupportedModel, match=r"The cheapest settings that pass: weight_dtype (bf16|f16)$"
    ):
        load_engine(settings("kl=0.0005", weight_dtype="int8"), folder)


def test_a_quantized_checkpoint_is_compared_with_its_original(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    original = checkpoint("llama")
    made = galley(
        *("quantize", str(original), str(tmp_path / "int4"), "--method", "rtn", "--tokens", "512"),
        *("--context", "32"),
    )
    assert made.returncode == 0, made.stderr
    config = tmp_path / "int4" / "config.json"
    said = json.loads(config.read_text())
    del said["galley_quantize"]  # as in other programs' files
    config.write_text(json.dumps(said))
    with pytest.raises(UnsupportedModel, match="set quality_gate_against to the original"):
        load_engine(settings("kl=1"), tmp_path / "int4")
    held = settings("kl=1", quality_gate_against=str(original))
    weights = load_engine(held, tmp_path / "int4").info.weights
    assert weights is not None
    assert weights.kl is not None
    assert 0.001 < weights.kl < 1
    strict = settings("kl=0.02", quality_gate_against=str(original))
    with pytest.raises(
        UnsupportedModel, match=f"settings that pass: {original} with weight_dtype int8"
    ):
        load_engine(strict, tmp_path / "int4")
    other = settings("kl=1", quality_gate_against="galley-demo")
    with pytest.raises(UnsupportedModel, match="name the checkpoint that it was quantized from"):
        load_engine(other, tmp_path / "int4")


def test_an_original_needs_limits() -> None:
    with pytest.raises(SettingsError, match="quality_gate_against"):
        settings("", quality_gate_against="org/name")


def test_an_honest_model_passes_and_is_measured_once(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("llama-mha-tied")
    first = load_engine(settings("kl=0.02", weight_dtype="int8"), folder).info.weights
    assert first is not None
    assert first.method == "rtn"
    assert first.kind.startswith("int8")
    assert first.kl is not None
    assert 0 < first.kl < 0.02
    same = load_engine(settings("kl=0.02", dtype="float32"), folder).info.weights
    assert same is not None
    assert same.kl == 0.0
    assert same.top1 == 1.0

    def not_again(*arguments: object, **more: object) -> Layerwise:
        raise AssertionError("measured again")

    monkeypatch.setattr(gate, "Layerwise", not_again)
    assert load_engine(settings("kl=0.03", weight_dtype="int8"), folder).info.weights == first
    with pytest.raises(AssertionError, match="measured again"):
        load_engine(settings("kl=0.03", weight_dtype="int8", weight_cache=False), folder)


def test_results_are_listed_and_removed(checkpoint: CheckpointMaker) -> None:
    load_engine(settings("kl=0.02", weight_dtype="int8"), checkpoint("llama"))
    listed = galley("cache", "list").stdout
    assert "quality gate of" in listed
    galley("cache", "prune", "--all")
    assert "quality gate of" not in galley("cache", "list").stdout


def test_a_speech_model_is_refused(checkpoint: CheckpointMaker) -> None:
    with pytest.raises(UnsupportedModel, match="is a speech model; leave it out"):
        load_engine(settings("kl=1"), checkpoint("whisper"))


def test_the_server_says_what_it_serves(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder = checkpoint("llama-mha-tied")
    log = tmp_path / "log"
    with Server(
        folder, log, kv_cache_tokens=1024, weight_dtype="int8", quality_gate="kl=0.02"
    ) as server:
        [card] = httpx.get(f"{server.url}/v1/models").json()["data"]
        weights = card["weights"]
        assert weights["method"] == "rtn"
        assert weights["kind"] == "int8 (group 32, BF16 scales)"
        assert 0 < weights["kl"] < 0.02
        assert 0.5 < weights["top1"] <= 1
        [line] = [
            line
            for line in httpx.get(f"{server.url}/metrics").text.splitlines()
            if line.startswith("galley_model_info{")
        ]
        assert f'kl="{weights["kl"]:.3g}"' in line
        assert 'method="rtn"' in line
