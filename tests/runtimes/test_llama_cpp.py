"""llama.cpp in the test's own process: the same texts as alone, with what Galley's engine adds."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.errors import CheckpointError, RequestError, SettingsError, UnsupportedModel
from galley.runtimes.llama_cpp import load
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import LLAMA_CPP_ENGINE
from galley.types import SamplingParams
from tests.formats.gguf_files import write_gguf
from tests.runtimes.language_models import (
    CONTEXT,
    GREEDY,
    PROMPTS,
    check_aborts,
    check_continues,
    generate,
    llama_cpp_alone,
    make_gguf,
    random_ids,
    run,
    tokens_of,
)

pytest.importorskip("llama_cpp", reason="extra llama-cpp")
pytestmark = pytest.mark.xdist_group("llama_cpp")

EXACT = '{"kv_type": "f32"}'


def engine_for(path: Path, options: str = EXACT, **settings: Any) -> Engine:
    settings = {"threads": 1, "max_model_len": CONTEXT, "max_running": 16, **settings}
    return load(
        EngineSettings(
            model=str(path), engine=LLAMA_CPP_ENGINE, engine_options=options, **settings
        ),
        path,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("llama_cpp") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(path: Path) -> Engine:
    return engine_for(path)


@pytest.fixture(scope="module")
def alone(path: Path) -> Any:
    return llama_cpp_alone(path)


@pytest.mark.parametrize("options", [EXACT, "{}"])
def test_greedy_texts_are_those_of_the_library(path: Path, alone: Any, options: str) -> None:
    engine = engine_for(path, options)
    assert generate(engine, PROMPTS, GREEDY) == [alone(prompt, 24) for prompt in PROMPTS]
    assert engine.stats.running == engine.stats.kv_used_blocks == 0


def test_a_shared_cache_that_fills_up_preempts(path: Path, alone: Any) -> None:
    """Twelve texts of up to 62 tokens in a cache of 256: some are preempted and computed again."""
    small = engine_for(path, kv_cache_tokens=CONTEXT)
    assert generate(small, PROMPTS, GREEDY) == [alone(prompt, 24) for prompt in PROMPTS]
    assert small.stats.preemptions > 0
    small.check_blocks()


def test_a_prompt_longer_than_a_step_is_computed_in_chunks(path: Path, alone: Any) -> None:
    chunked = engine_for(path, max_batch_tokens=16)
    prompts = [random_ids(40, 150), random_ids(41, 33)]
    assert generate(chunked, prompts, GREEDY) == [alone(prompt, 24) for prompt in prompts]


def test_draws_and_log_probabilities_are_those_of_galley(engine: Engine, path: Path) -> None:
    """The same seed draws the same tokens as Galley's own engine computes from the same weights."""
    params = SamplingParams(
        temperature=0.9,
        top_p=0.8,
        seed=7,
        max_tokens=12,
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=0,
        logit_bias={9: 2.0},
        presence_penalty=0.5,
    )
    settings = EngineSettings(dtype="float32", threads=1, kv_cache_tokens=1024)
    native = load_engine(settings, path)
    results = []
    for each in (engine, native):
        [request] = expand(PROMPTS[3], params, each.info, request_id="a")
        each.add(request)
        results.append(run(each)["a-0"])
    ours, theirs = results
    assert tokens_of(ours) == tokens_of(theirs)
    assert ours[0].generated.prompt_logprobs is not None
    assert theirs[0].generated.prompt_logprobs is not None
    for one, other in zip(
        [entry for output in ours for entry in output.generated.logprobs or []]
        + ours[0].generated.prompt_logprobs,
        [entry for output in theirs for entry in output.generated.logprobs or []]
        + theirs[0].generated.prompt_logprobs,
        strict=True,
    ):
        assert one.token == other.token
        np.testing.assert_allclose(one.logprob, other.logprob, atol=2e-2)


def test_a_text_continues_after_its_output_with_its_draws(engine: Engine) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=24, ignore_eos=True)
    check_continues(engine, params)


def test_aborted_texts_leave_the_others_alone(engine: Engine) -> None:
    check_aborts(engine)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"max_adapters": 2}, "max_adapters is 2"),
        ({"max_running": 300}, "max_running is 300, but llama.cpp runs at most 256"),
        ({"options": '{"kv_type": "int8"}'}, "engine 'llama.cpp'.*`kv_type`|kv_type"),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_for(path, **settings)


def test_what_it_cannot_do_or_read_is_refused(engine: Engine, path: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"engine llama\.cpp does not support num_beams \(2\)"):
        expand(PROMPTS[0], SamplingParams(num_beams=2), engine.info, request_id="a")
    with pytest.raises(UnsupportedModel, match="not a GGUF file"):
        engine_for(path.parent / f"{path.stem}-checkpoint")
    checkpoint = path.parent / f"{path.stem}-checkpoint"
    wrong = write_gguf(tmp_path / "wrong.gguf", checkpoint, metadata={"general.file_type": 1})
    with pytest.raises(CheckpointError, match=r"llama\.cpp cannot load it: .*general\.file_type"):
        engine_for(wrong)


def test_a_missing_library_is_named_with_its_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(SettingsError, match=r"pip install 'galley-inference\[llama-cpp\]'"):
        engine_for(path)
