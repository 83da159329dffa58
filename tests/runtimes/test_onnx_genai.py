"""ONNX Runtime GenAI in the test's own process: the same texts as alone, and what it does not do."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.runtimes import onnx_genai
from galley.runtimes.onnx_genai import load
from galley.runtimes.text_engine import TextEngine
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import ONNX_GENAI_ENGINE, engine_of
from galley.types import MAX_COUNT, Generate, SamplingParams
from tests.checkpoints import EOS
from tests.runtimes.genai_folders import genai_alone, make_genai
from tests.runtimes.language_models import (
    CONTEXT,
    GREEDY,
    ONE_TOKEN,
    PROMPTS,
    check_aborts,
    check_continues,
    check_refused,
    check_stops,
    generate,
    random_ids,
)

pytest.importorskip("onnxruntime_genai", reason="extra onnxruntime-genai")
# With the server of such a model, which is built once.
pytestmark = pytest.mark.xdist_group("text_runtimes")


def engine_for(path: Path, options: str = "", **settings: Any) -> TextEngine[Generate]:
    settings = {"threads": 1, "max_model_len": CONTEXT, **settings}
    return load(
        EngineSettings(
            model=str(path), engine=ONNX_GENAI_ENGINE, engine_options=options, **settings
        ),
        path,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_genai(tmp_path_factory.mktemp("genai") / "tiny")


@pytest.fixture(scope="module")
def engine(path: Path) -> TextEngine[Generate]:
    return engine_for(path)


def of_transformers(path: Path, prompt: list[int], **parameters: Any) -> list[int]:
    original = AutoModelForCausalLM.from_pretrained(path.parent / "tiny-checkpoint")
    parameters = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, **parameters}
    tokens: list[int] = original.generate(torch.tensor([prompt]), **parameters)[0].tolist()
    return tokens[len(prompt) :]


def test_greedy_texts_are_those_of_the_library_and_of_transformers(
    engine: TextEngine[Generate], path: Path
) -> None:
    alone = genai_alone(path)
    texts = generate(engine, PROMPTS, GREEDY)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        expected = alone(prompt, 24)
        if EOS not in text:
            assert text == expected
        else:
            assert text[: text.index(EOS)] == expected[: text.index(EOS)]
    assert texts[3] == of_transformers(path, PROMPTS[3])
    assert engine.stats.running == 0
    assert engine.stats.decode_tokens >= 12 * 23
    assert engine.stats.prefill_tokens == sum(map(len, PROMPTS))


def test_a_batch_of_one_where_memory_is_scarce(
    engine: TextEngine[Generate], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_genai, "available_memory", lambda: 0)
    prompts = PROMPTS[:3]
    assert generate(engine_for(path), prompts, GREEDY) == generate(engine, prompts, GREEDY)


def test_texts_may_fill_the_context(engine: TextEngine[Generate]) -> None:
    whole = SamplingParams(temperature=0, ignore_eos=True)
    prompts = [random_ids(1, CONTEXT - 1), random_ids(2, CONTEXT - 30)]
    assert list(map(len, generate(engine, prompts, whole))) == [1, 30]


def test_an_end_token_that_is_ignored_is_part_of_the_text(path: Path, tmp_path: Path) -> None:
    """The library ends a text at its end token, so that the text goes on in another session."""
    [plain] = generate(engine_for(path), PROMPTS[:1], GREEDY)
    other = tmp_path / "other"
    other.mkdir()
    for file in path.iterdir():
        (other / file.name).symlink_to(file)
    config = (path / "genai_config.json").read_text()
    (other / "genai_config.json").unlink()
    (other / "genai_config.json").write_text(
        config.replace(f'"eos_token_id": {EOS}', f'"eos_token_id": [{plain[5]}, {plain[9]}]')
    )
    engine = engine_for(other)
    assert generate(engine, PROMPTS[:1], GREEDY) == [plain]
    ends = SamplingParams(temperature=0, max_tokens=24)
    first = min(plain.index(plain[5]), plain.index(plain[9]))
    assert generate(engine, PROMPTS[:1], ends) == [plain[: first + 1]]


def test_stop_tokens_and_penalties(engine: TextEngine[Generate], path: Path) -> None:
    check_stops(engine)
    given = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, repetition_penalty=1.5)
    expected = of_transformers(path, PROMPTS[4], repetition_penalty=1.5)
    assert generate(engine, [PROMPTS[4]], given) == [expected]


def test_draws_follow_the_parameters(engine: TextEngine[Generate]) -> None:
    [plain] = generate(engine, PROMPTS[:1], GREEDY)
    for only in (*ONE_TOKEN, {"temperature": 1e-4}):
        common = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
        params = SamplingParams(**{**common, **only})
        assert generate(engine, PROMPTS[:1], params) == [plain], only
    for top_k in (0, MAX_COUNT):
        params = SamplingParams(temperature=50, max_tokens=100, ignore_eos=True, top_k=top_k)
        texts = generate(engine, PROMPTS[:1] * 4, params)
        assert len({tuple(text) for text in texts}) == 4
        assert len({token for text in texts for token in text}) > 100  # of 320: none is cut off


def test_a_text_continues_after_its_output(engine: TextEngine[Generate]) -> None:
    check_continues(engine)


def test_aborted_texts_leave_the_others_alone(engine: TextEngine[Generate]) -> None:
    check_aborts(engine)


def test_its_folder_is_recognized_and_the_default_is_greedy(
    path: Path, engine: TextEngine[Generate]
) -> None:
    assert engine_of(str(path)) == ONNX_GENAI_ENGINE
    assert engine.info.require_text().defaults.temperature == 0


@pytest.mark.parametrize(
    "params",
    [{"seed": 1}, {"logprobs": 0}, {"min_tokens": 3}, {"min_p": 0.5}, {"num_beams": 2}],
    ids=lambda params: next(iter(params)),
)
def test_what_it_does_not_do_is_refused_and_named(
    engine: TextEngine[Generate], params: Any
) -> None:
    check_refused(engine, "onnxruntime-genai", params)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"kv_cache_tokens": 64}, "kv_cache_tokens is 64"),
        ({"max_model_len": 4096}, r"max_model_len is 4096, but .* was trained for 512"),
        ({"options": '{"provider": "warp"}'}, "provider is 'warp'"),
        ({"options": '{"providers": "cpu"}'}, "engine 'onnxruntime-genai'.*`providers`"),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_for(path, **settings)


def test_files_that_it_cannot_read_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"onnxruntime_genai\.models\.builder"):
        engine_for(path.parent / "tiny-checkpoint")
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="model"):
        engine_for(tmp_path)
    (tmp_path / "genai_config.json").write_text((path / "genai_config.json").read_text())
    with pytest.raises(CheckpointError, match="ONNX Runtime GenAI cannot load it"):
        engine_for(tmp_path)


def test_a_missing_library_is_named_with_its_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    with pytest.raises(SettingsError, match=r"pip install 'galley-inference\[onnxruntime-genai\]'"):
        engine_for(path)
