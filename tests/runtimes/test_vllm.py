"""The engine ``vllm`` compared with vLLM alone. Needs a build of vLLM for this machine."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from galley.errors import CheckpointError, RequestError, SettingsError
from galley.runtimes import vllm as engine_vllm
from galley.runtimes.text_engine import TextEngine
from galley.service.requests import check_cache_salt, expand
from galley.settings.engine import EngineSettings
from galley.types import Generate, Grammar, SamplingParams
from tests.runtimes.language_models import (
    CONTEXT,
    GREEDY,
    PROMPTS,
    check_aborts,
    check_continues,
    check_draws,
    check_penalty_ends,
    check_refused,
    check_stops,
    generate,
    make_folder,
    random_ids,
    run,
)

vllm = pytest.importorskip("vllm", reason="engine vllm")
pytestmark = pytest.mark.xdist_group("vllm")

EXACT = '{"enforce_eager": true, "dtype": "float32"}'


def engine_for(folder: Path, options: str = EXACT, **settings: Any) -> TextEngine[Generate]:
    given = {"max_model_len": CONTEXT, "threads": 1, "max_running": 32} | settings
    return engine_vllm.load(
        EngineSettings(model=str(folder), engine="vllm", engine_options=options, **given), folder
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[TextEngine[Generate]]:
    engine = engine_for(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(folder: Path, engine: TextEngine[Generate]) -> Callable[..., Any]:
    """Return a function that continues one prompt with vLLM's own class, given its own parameters."""
    model = vllm.LLM(
        str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=CONTEXT,
        kv_cache_memory_bytes=2**24,
        enable_prefix_caching=False,
    )

    def continued(prompt: list[int], **parameters: Any) -> Any:
        given = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "detokenize": False}
        sampling = vllm.SamplingParams(**(given | parameters))
        [result] = model.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        return result.outputs[0]

    return continued


def test_greedy_texts_are_those_of_the_library(engine: TextEngine[Generate], alone: Any) -> None:
    texts = generate(engine, PROMPTS, GREEDY)
    assert texts == [list(alone(prompt).token_ids) for prompt in PROMPTS]
    assert len({tuple(text) for text in texts}) > 6
    stats = engine.stats
    assert stats.running == stats.kv_used_blocks == 0
    assert stats.kv_total_blocks * 32 >= CONTEXT
    assert stats.prefill_tokens >= sum(map(len, PROMPTS))


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"logit_bias": {7: 100.0}},
        {"min_tokens": 9},
    ],
    ids=lambda params: next(iter(params)),
)
def test_parameters_are_those_of_the_library(
    engine: TextEngine[Generate], alone: Any, params: dict[str, Any]
) -> None:
    plain = list(alone(PROMPTS[0]).token_ids)
    stop = plain[5]
    given = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, stop_token_ids=(stop,), **params
    )
    expected = list(alone(PROMPTS[0], stop_token_ids=[stop], **params).token_ids)
    assert generate(engine, PROMPTS[:1], given) == [expected]
    assert expected != plain[: plain.index(stop) + 1]


def test_log_probabilities_are_those_of_the_library(
    engine: TextEngine[Generate], alone: Any
) -> None:
    """They are of the model's own distribution, whatever the temperature and the penalties."""
    params = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, logprobs=3, presence_penalty=1.5
    )
    [request] = expand(PROMPTS[0], params, engine.info, request_id="a")
    engine.add(request)
    given = [one for output in run(engine)["a-0"] for one in output.generated.logprobs or ()]
    reference = alone(PROMPTS[0], max_tokens=8, logprobs=3, presence_penalty=1.5)
    assert [one.token for one in given] == list(reference.token_ids)
    for one, expected in zip(given, reference.logprobs, strict=True):
        assert one.logprob == pytest.approx(expected[one.token].logprob, abs=1e-4)
        ranked = sorted((v.rank, token) for token, v in expected.items() if v.rank <= 3)
        assert [token for token, _ in one.top] == [token for _, token in ranked]
        assert sum(math.exp(value) for _, value in one.top) <= 1 + 1e-6


def test_a_stop_token_ends_the_text_and_is_its_last(engine: TextEngine[Generate]) -> None:
    check_stops(engine)


def test_draws_follow_the_parameters(engine: TextEngine[Generate]) -> None:
    check_draws(engine, {"min_p": 1.0}, temperature=2)


def test_a_value_that_vllm_refuses_is_the_requests_error(engine: TextEngine[Generate]) -> None:
    params = SamplingParams(temperature=50)
    engine.add(expand(PROMPTS[0], params, engine.info, request_id="a")[0])
    [output] = run(engine)["a-0"]
    assert output.refused
    assert "temperature must be in [0, 2]" in str(output.error)


def test_a_text_continues_after_its_output(engine: TextEngine[Generate]) -> None:
    check_continues(engine)
    check_penalty_ends(engine)


def test_aborted_texts_leave_the_others_alone(engine: TextEngine[Generate]) -> None:
    check_aborts(engine)


def test_the_last_tokens_fit_the_context(engine: TextEngine[Generate]) -> None:
    params = SamplingParams(temperature=0, max_tokens=CONTEXT - 20, ignore_eos=True)
    [text] = generate(engine, [random_ids(3, 20)], params)
    assert len(text) == CONTEXT - 20


@pytest.mark.parametrize(
    "params",
    [
        {"seed": 1},
        {"prompt_logprobs": 0},
        {"grammar": Grammar("regex", "a")},
        {"num_beams": 2},
        {"penalty_window": 3},
    ],
    ids=lambda params: next(iter(params)),
)
def test_what_it_does_not_do_is_refused_and_named(
    engine: TextEngine[Generate], params: Any
) -> None:
    check_refused(engine, "vllm", params)


def test_prefixes_are_cached_only_if_the_options_say_so(
    engine: TextEngine[Generate], folder: Path
) -> None:
    prompt = random_ids(5, 70)
    texts = generate(engine, [prompt], GREEDY)
    assert generate(engine, [prompt], GREEDY) == texts
    assert engine.stats.prefix_hit_tokens == 0
    check_cache_salt(engine.info)
    caching = engine_for(folder, EXACT.replace("{", '{"prefix_caching": true, '))
    assert generate(caching, [prompt], GREEDY) == generate(caching, [prompt], GREEDY) == texts
    assert caching.stats.prefix_hit_tokens == 64
    with pytest.raises(RequestError, match="engine vllm does not support cache_salt"):
        check_cache_salt(caching.info)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"weight_dtype": "int8"}, "weight_dtype is 'int8'"),
        ({"max_model_len": 4096}, "max_model_len is 4096, but .* was trained for 512"),
        ({"options": '{"devise": "CPU"}'}, "engine 'vllm'.*`devise`"),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    folder: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_for(folder, **settings)


def test_what_vllm_refuses_is_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="vLLM cannot load it"):
        engine_for(folder, '{"dtype": "float7"}')
    with pytest.raises(CheckpointError, match=r"vLLM cannot load it.*KV cache"):
        engine_for(folder, kv_cache_tokens=CONTEXT // 2)
