"""OpenVINO GenAI in the test's own process: the same texts as alone, and what it does not do."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from galley.errors import CheckpointError, RequestError, SettingsError, UnsupportedModel
from galley.runtimes.openvino import load
from galley.runtimes.text_engine import TextEngine
from galley.service.requests import check_cache_salt, expand
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import OPENVINO_ENGINE, engine_of
from galley.types import Generate, SamplingParams
from galley.types.sampling import Grammar
from tests.runtimes.language_models import (
    CONTEXT,
    EXACT,
    GREEDY,
    PROMPTS,
    check_aborts,
    check_continues,
    check_draws,
    check_penalty_ends,
    check_refused,
    check_stops,
    generate,
    make_gguf,
    openvino_alone,
    random_ids,
    run,
)

pytest.importorskip("openvino_genai", reason="extra openvino")
pytestmark = pytest.mark.xdist_group("openvino")


def engine_for(path: Path, options: str = EXACT, **settings: Any) -> TextEngine[Generate]:
    settings = {"threads": 1, "max_model_len": CONTEXT, "kv_cache_tokens": 4096, **settings}
    return load(
        EngineSettings(model=str(path), engine=OPENVINO_ENGINE, engine_options=options, **settings),
        path,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("openvino") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(path: Path) -> TextEngine[Generate]:
    return engine_for(path)


@pytest.fixture(scope="module")
def alone(path: Path) -> Any:
    return openvino_alone(path)


def test_greedy_texts_are_those_of_the_library(engine: TextEngine[Generate], alone: Any) -> None:
    texts = generate(engine, PROMPTS, GREEDY)
    expected = [alone(prompt, {"max_new_tokens": 24, "ignore_eos": True}) for prompt in PROMPTS]
    assert texts == expected
    assert engine.stats.running == engine.stats.kv_used_blocks == 0
    assert engine.stats.decode_tokens >= 12 * 23


def test_penalties_and_lengths_are_those_of_the_library(
    engine: TextEngine[Generate], alone: Any
) -> None:
    prompt = PROMPTS[0]
    plain = alone(prompt, {"max_new_tokens": 24, "ignore_eos": True})
    stop = plain[5]
    for params, parameters in (
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"presence_penalty": 2.0}, {"presence_penalty": 2.0}),
        ({"frequency_penalty": -2.0}, {"frequency_penalty": -2.0}),
        (
            {"stop_token_ids": (stop,), "min_tokens": 9},
            {"stop_token_ids": {stop}, "min_new_tokens": 9, "ignore_eos": False},
        ),
    ):
        given = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **params)
        common = {"max_new_tokens": 24, "ignore_eos": True}
        assert generate(engine, [prompt], given) == [alone(prompt, common | parameters)], params


def test_a_stop_token_ends_the_text_and_is_its_last(engine: TextEngine[Generate]) -> None:
    check_stops(engine)


def test_a_text_that_ignores_the_end_of_text_ends_at_its_own_stop_tokens(
    engine: TextEngine[Generate], path: Path, tmp_path: Path
) -> None:
    """OpenVINO takes the file's end token for one of a request that has stop tokens and no end token."""
    [text] = generate(engine, [PROMPTS[0]], GREEDY)
    same = make_gguf(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.eos_token_id": text[5]})
    other = engine_for(same)
    stop = next(token for token in text if text.index(token) > 8)
    given = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop_token_ids=(stop,))
    assert generate(other, [PROMPTS[0]], given) == [text[: text.index(stop) + 1]]
    ends = SamplingParams(temperature=0, max_tokens=24)
    assert generate(other, [PROMPTS[0]], ends)[0] == text[: text.index(text[5]) + 1]


def test_draws_follow_the_parameters(engine: TextEngine[Generate]) -> None:
    check_draws(engine, {"min_p": 1.0}, {"temperature": 1e-4})


def test_a_text_continues_after_its_output(engine: TextEngine[Generate]) -> None:
    check_continues(engine)
    check_penalty_ends(engine)


def test_aborted_texts_leave_the_others_alone(engine: TextEngine[Generate]) -> None:
    check_aborts(engine)


def test_no_more_than_max_running_run_and_no_tokens_are_no_work(path: Path) -> None:
    few = engine_for(path, max_running=2)
    for number, prompt in enumerate(PROMPTS[:5]):
        few.add(expand(prompt, GREEDY, few.info, request_id=str(number))[0])
    few.step()
    assert (few.stats.running, few.stats.waiting) == (2, 3)
    assert len(run(few)) == 5
    few.add(expand(PROMPTS[0], SamplingParams(max_tokens=0), few.info, request_id="a")[0])
    [output] = run(few)["a-0"]
    assert (output.tokens, output.finish_reason) == ([], "length")


@pytest.mark.parametrize(
    "params",
    [
        {"seed": 1},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"grammar": Grammar("regex", "a")},
        {"num_beams": 2},
        {"penalty_window": 3},
    ],
    ids=lambda params: next(iter(params)),
)
def test_what_it_does_not_do_is_refused_and_named(
    engine: TextEngine[Generate], params: Any
) -> None:
    check_refused(engine, "openvino", params)


def test_a_salt_is_refused_only_where_prefixes_are_cached(
    engine: TextEngine[Generate], path: Path
) -> None:
    check_cache_salt(engine.info)
    assert "cache_salt" not in engine.info.require_text().unsupported
    caching = engine_for(path, '{"prefix_caching": true}')
    with pytest.raises(RequestError, match="engine openvino does not support cache_salt") as error:
        check_cache_salt(caching.info)
    assert error.value.param == "cache_salt"
    assert expand(PROMPTS[0], GREEDY, caching.info, request_id="a", cache_salt="a tenant's")


def test_the_last_tokens_fit_the_cache(path: Path) -> None:
    """A text as long as the context in a cache of the same size."""
    full = engine_for(path, kv_cache_tokens=CONTEXT)
    params = SamplingParams(temperature=0, max_tokens=CONTEXT - 20, ignore_eos=True)
    [text] = generate(full, [random_ids(3, 20)], params)
    assert len(text) == CONTEXT - 20


def test_a_folder_that_optimum_exports_is_read(path: Path, tmp_path: Path, alone: Any) -> None:
    import openvino_genai

    folder = tmp_path / "exported"
    shutil.copytree(path.parent / f"{path.stem}-checkpoint", folder)
    (folder / "model.safetensors").unlink()
    source = shutil.copy(path, folder)
    openvino_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
    Path(source).unlink()
    assert engine_of(str(folder)) == OPENVINO_ENGINE
    expected = alone(PROMPTS[0], {"max_new_tokens": 24, "ignore_eos": True})
    assert generate(engine_for(folder), PROMPTS[:1], GREEDY) == [expected]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"weight_dtype": "int8"}, "weight_dtype is 'int8'"),
        ({"max_adapters": 2}, "max_adapters is 2"),
        ({"prefix_cache_dir": "/tmp/prefixes"}, "prefix_cache_dir is '/tmp/prefixes'"),
        ({"batching": "static"}, "batching is 'static'"),
        ({"speculation": "prompt"}, "speculation is 'prompt'"),
        ({"max_model_len": 4096}, "max_model_len is 4096, but .* was trained for 512"),
        ({"options": '{"device": "TPU"}'}, "device 'TPU' is not available to OpenVINO; .*CPU"),
        ({"options": '{"devise": "CPU"}'}, "engine 'openvino'.*`devise`"),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_for(path, **settings)


def test_files_that_it_cannot_read_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="optimum-cli export openvino"):
        engine_for(path.parent / f"{path.stem}-checkpoint")
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CheckpointError):
        engine_for(short)
    with pytest.raises(CheckpointError, match="OpenVINO GenAI cannot load it"):
        engine_for(path, '{"properties": {"NO_SUCH_PROPERTY": 1}}')


def test_a_missing_library_is_named_with_its_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(SettingsError, match=r"pip install 'galley-inference\[openvino\]'"):
        engine_for(path)
