"""CTranslate2's language models in the test's own process: texts as alone, and what it does not do."""

import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.runtimes import ctranslate2
from galley.runtimes.batched import Job
from galley.runtimes.ctranslate2_text import CTranslate2Texts
from galley.runtimes.text_engine import TextEngine
from galley.service.requests import expand
from galley.types import MAX_COUNT, Generate, SamplingParams
from galley.types.sampling import Grammar
from tests.runtimes.ctranslate2_folders import decoder_alone, engine_for, make_decoder
from tests.runtimes.language_models import (
    GREEDY,
    PROMPTS,
    check_aborts,
    check_continues,
    check_draws,
    check_refused,
    check_stops,
    generate,
    random_ids,
    resume,
    run,
    tokens_of,
)

pytest.importorskip("ctranslate2", reason="extra ctranslate2")
pytestmark = pytest.mark.xdist_group("ctranslate2")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("ctranslate2") / "tiny")


@pytest.fixture(scope="module")
def engine(path: Path) -> TextEngine[Generate]:
    return engine_for(path)


def test_greedy_texts_are_those_of_the_library_and_of_transformers(
    engine: TextEngine[Generate], path: Path
) -> None:
    """One prompt is longer than others of its batch may be, so it is in another."""
    prompts = [*PROMPTS, random_ids(99, 180)]
    alone = decoder_alone(path)
    texts = generate(engine, prompts, GREEDY)
    assert texts == [alone(prompt, {"max_length": 24}) for prompt in prompts]
    original = AutoModelForCausalLM.from_pretrained(path.parent / "tiny-checkpoint")
    whole = original.generate(torch.tensor([prompts[3]]), max_new_tokens=24, eos_token_id=None)
    assert texts[3] == whole[0, len(prompts[3]) :].tolist()
    assert engine.stats.running == 0
    assert engine.stats.decode_tokens >= 12 * 23


def test_a_repetition_penalty_counts_the_prompt(engine: TextEngine[Generate], path: Path) -> None:
    """As in transformers, and also for a text that began in an engine that died."""
    original = AutoModelForCausalLM.from_pretrained(path.parent / "tiny-checkpoint")
    whole = original.generate(
        torch.tensor([PROMPTS[4]]), max_new_tokens=24, repetition_penalty=1.5, eos_token_id=None
    )
    expected = whole[0, len(PROMPTS[4]) :].tolist()
    given = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, repetition_penalty=1.5)
    assert generate(engine, PROMPTS, given)[4] == expected
    [first] = generate(engine, PROMPTS[:1], given)
    assert first != generate(engine, PROMPTS[:1], GREEDY)[0]
    assert tokens_of(resume(engine, given, first[:10])) == first[10:]


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_no_stop_token_before_the_least_tokens(
    engine: TextEngine[Generate], penalty: float
) -> None:
    common: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "repetition_penalty": penalty}
    plain = generate(engine, PROMPTS, SamplingParams(max_tokens=24, **common))
    stops = (plain[0][5], plain[2][3])
    given = SamplingParams(max_tokens=24, min_tokens=9, stop_token_ids=stops, **common)
    for text in generate(engine, PROMPTS, given):
        assert not set(stops) & set(text[:9])
        assert not set(stops) & set(text[:-1])
    stopped = generate(
        engine, PROMPTS, SamplingParams(max_tokens=24, stop_token_ids=stops, **common)
    )
    assert stopped[0] == plain[0][: plain[0].index(stops[0]) + 1] or stops[1] in plain[0][:6]
    assert (
        stopped[2]
        == plain[2][: 1 + min(plain[2].index(stop) for stop in stops if stop in plain[2])]
    )


def test_a_stop_token_ends_the_text_and_is_its_last(engine: TextEngine[Generate]) -> None:
    check_stops(engine)


def test_draws_follow_the_parameters(engine: TextEngine[Generate]) -> None:
    check_draws(engine, {"temperature": 1e-4}, top_k=0)
    check_draws(engine, top_k=MAX_COUNT)


def test_a_text_continues_after_its_output(engine: TextEngine[Generate]) -> None:
    check_continues(engine)


def test_aborted_texts_leave_the_others_alone(engine: TextEngine[Generate]) -> None:
    check_aborts(engine)


def test_batches_fit_into_their_share_of_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token has 24 numbers of keys and 24 of values, float32, in each of two layers: 384 bytes."""
    prompts = [random_ids(number, 6) for number in range(5)]
    texts = generate(engine_for(path), prompts, GREEDY)
    monkeypatch.setattr(ctranslate2, "available_memory", lambda: 10 * 4 * 30 * 384)
    small = engine_for(path, kv_memory_fraction=0.1)
    runtime = small._runtime
    assert isinstance(runtime, CTranslate2Texts)
    sizes, compute = list[int](), runtime.compute

    def counted(batch: list[Job[Generate]]) -> None:
        sizes.append(len(batch))
        compute(batch)

    monkeypatch.setattr(runtime, "compute", counted)
    assert generate(small, prompts, GREEDY) == texts
    assert sizes == [4, 1]


def test_batches_run_at_a_time(path: Path) -> None:
    """Texts of different parameters are in different batches; each worker has one."""
    two = engine_for(path, '{"workers": 2}')
    warm = SamplingParams(temperature=1e-4, max_tokens=24, ignore_eos=True)
    for number, params in enumerate((GREEDY, warm)):
        two.add(expand(PROMPTS[0], params, two.info, request_id=str(number))[0])
    outputs = run(two)
    assert tokens_of(outputs["0-0"]) == tokens_of(outputs["1-0"])
    two.close()


def test_what_fails_in_the_library_is_the_requests_error(path: Path) -> None:
    engine = engine_for(path)
    [request] = expand(PROMPTS[0], GREEDY, engine.info, request_id="a")
    short = engine_for(path)
    runtime = short._runtime
    assert isinstance(runtime, CTranslate2Texts)
    runtime._vocabulary = runtime._vocabulary[:4]
    short.add(request)
    [output] = run(short)["a-0"]
    assert output.finish_reason == "error"
    assert output.error == "list index out of range"
    [request] = expand([1, 2, 3], GREEDY, engine.info, request_id="b")
    short.add(request)
    assert len(tokens_of(run(short)["b-0"])) == 24


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
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
        {"min_p": 0.5},
    ],
    ids=lambda params: next(iter(params)),
)
def test_what_it_does_not_do_is_refused_and_named(
    engine: TextEngine[Generate], params: Any
) -> None:
    check_refused(engine, "ctranslate2", params)


def test_values_without_effect_are_honored(engine: TextEngine[Generate]) -> None:
    neutral = SamplingParams(min_p=0.0, presence_penalty=0.0, penalty_window=-1)
    assert len(expand(PROMPTS[0], neutral, engine.info, request_id="a")) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"max_adapters": 2}, "max_adapters is 2"),
        ({"kv_cache_tokens": 64}, "kv_cache_tokens is 64"),
        ({"max_model_len": None}, "does not say how many tokens .* set max_model_len"),
        ({"sampling_defaults": ("min_p=0.1",)}, "default of min_p is 0.1"),
        ({"options": '{"device": "tpu"}'}, "engine 'ctranslate2'.*tpu"),
        ({"options": '{"compute_type": "int3"}'}, "Invalid compute type: int3"),
        ({"options": '{"workers": 0}'}, "workers"),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_for(path, **settings)


def test_the_context_of_the_tokenizers_configuration_is_the_limit(
    path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "limited"
    shutil.copytree(path, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 99}))
    assert engine_for(folder, max_model_len=None).info.require_text().max_model_len == 99
    with pytest.raises(SettingsError, match=r"max_model_len is 100, but .* was trained for 99"):
        engine_for(folder, max_model_len=100)


def test_files_that_it_cannot_read_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="ct2-transformers-converter"):
        engine_for(path.parent / "tiny-checkpoint")
    folder = tmp_path / "other"
    shutil.copytree(path, folder)
    data = (path / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(
        data.replace(b"TransformerDecoderSpec", b"TransformerEncoderSpec")
    )
    with pytest.raises(UnsupportedModel, match="of type TransformerEncoderSpec"):
        engine_for(folder)
    (folder / "model.bin").write_bytes(data[:-5000])
    with pytest.raises(CheckpointError):
        engine_for(folder)
    (folder / "model.bin").write_bytes(with_a_number(data, b"decoder/embeddings/weight\0"))
    with pytest.raises(CheckpointError, match=r"weight: has shape \[\], expected a matrix"):
        engine_for(folder)
    (folder / "model.bin").write_bytes(data)
    tokens = json.loads((path / "vocabulary.json").read_text())
    for wrong in ([*tokens, "one more"], [*tokens[:-1], tokens[0]]):
        (folder / "vocabulary.json").write_text(json.dumps(wrong))
        with pytest.raises(CheckpointError, match="the vocabulary has 28"):
            engine_for(folder)
    (folder / "vocabulary.json").write_text(json.dumps(["a", "b"]))
    with pytest.raises(CheckpointError, match="eos_token"):
        engine_for(folder)


def with_a_number(data: bytes, name: bytes) -> bytes:
    """Return a model's file with a float32 number in place of a matrix."""
    shape = data.index(name) + len(name) + 1
    kind = shape + 4 * data[shape - 1]
    [size] = struct.unpack_from("<I", data, kind + 1)
    return data[: shape - 1] + struct.pack("<BBIf", 0, 0, 4, 1.0) + data[kind + 5 + size :]


def test_a_missing_library_is_named_with_its_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(SettingsError, match=r"pip install 'galley-inference\[ctranslate2\]'"):
        engine_for(path)
