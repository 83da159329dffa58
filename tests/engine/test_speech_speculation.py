"""Speculation for speech: transcripts equal those without, and a draft model that agrees saves steps."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.service.speech_requests import transcribe_requests
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest
from galley.types.audio import NO_RULES
from tests.checkpoints import make_whisper
from tests.conftest import CheckpointMaker
from tests.engine.drafts import drafting, eager
from tests.engine.requests import run, seen
from tests.models.whisper import GREEDY, PROMPT, RULED, RULES, random_features, window_of
from tests.thorough import examples

SMALL = EngineSettings(threads=1, kv_cache_tokens=1024, speculation="off")
WISHES = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 40), "seed": st.integers(0, 2)},
    optional={
        "temperature": st.sampled_from([0.0, 0.8]),
        "rules": st.booleans(),
        "num_beams": st.just(3),
        "logprobs": st.just(1),
        "repetition_penalty": st.just(1.2),
        "speculation": st.just("off"),
    },
)
AUDIO = st.tuples(st.integers(0, 2), st.sampled_from([40, 90, 150]))
"""(seed, frames) of the features; several requests may be of the same audio."""


def spoken(engine: Engine, i: int, audio: tuple[int, int], wish: dict[str, Any]) -> EngineRequest:
    rules = wish.get("rules", False)
    params = {"temperature": 0.0, "ignore_eos": not rules} | wish
    params.pop("rules", None)
    if params.get("num_beams"):
        params = {"num_beams": 3, "temperature": 0.0, "max_tokens": wish["max_tokens"]}
    sampling = SamplingParams(**params)
    if rules:
        sampling = msgspec.structs.replace(RULED, **params)
    prompt = PROMPT[:-1] if rules else PROMPT
    [made] = transcribe_requests(
        prompt,
        sampling,
        engine.info,
        request_id=f"r{i}",
        encoder_input=window_of(random_features(audio[0], 80, audio[1])),
        rules=RULES if rules else NO_RULES,
    )
    return made


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model with a different encoder."""
    shape = {"d_model": 24, "encoder_layers": 1, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    folder = tmp_path_factory.mktemp("other-whisper")
    return make_whisper(folder, "whisper", seed=1, **shape)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory, checkpoint: CheckpointMaker) -> Path:
    """The model's encoder with a one-layer decoder that seldom agrees, as a distilled model has."""
    folder = tmp_path_factory.mktemp("distilled-whisper")
    make_whisper(folder, "whisper", seed=2, decoder_layers=1)
    teacher = load_file(checkpoint("whisper") / "model.safetensors")
    encoder = {name: t for name, t in teacher.items() if name.startswith("model.encoder")}
    weights = load_file(folder / "model.safetensors") | encoder
    save_file(weights, folder / "model.safetensors")
    return folder


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wished=st.lists(st.tuples(AUDIO, WISHES), min_size=1, max_size=5),
    draft=st.sampled_from(["none", "agrees", "other", "distilled"]),
    budget=st.sampled_from([8, 512]),
    tokens=st.sampled_from([320, 1024]),
    prefix_cache=st.booleans(),
)
def test_transcripts_are_those_without(
    wished: list[tuple[tuple[int, int], dict[str, Any]]],
    draft: str,
    budget: int,
    tokens: int,
    prefix_cache: bool,
    checkpoint: CheckpointMaker,
    other: Path,
    distilled: Path,
) -> None:
    """With timestamps and beams, preempted, on the same audio; each request also runs a second time."""
    folder = checkpoint("whisper")
    expecting = load_engine(SMALL, folder)
    made = [spoken(expecting, i, *wish) for i, wish in enumerate(wished)]
    expected = seen(run(expecting, made))
    changes: dict[str, Any] = {
        "kv_cache_tokens": tokens,
        "max_batch_tokens": budget,
        "max_running": 4,
        "prefix_cache": prefix_cache,
    }
    if draft == "none":
        engine = eager(load_engine(dataclasses.replace(SMALL, **changes), folder), "auto")
    else:
        drafts = {"agrees": folder, "other": other, "distilled": distilled}
        engine = drafting(folder, drafts[draft], **changes)
        assert engine._speculation._draft_model is not None
        assert engine._speculation._draft_model._shares_encoder == (draft != "other")
    for _ in range(2):
        assert seen(run(engine, made)) == expected


@pytest.mark.parametrize("rules", [False, True])
def test_a_model_that_agrees_saves_steps(rules: bool, checkpoint: CheckpointMaker) -> None:
    """This also holds under Whisper's rules; each recording is encoded once for all its requests."""
    folder = checkpoint("whisper")
    engine = drafting(folder, folder, kv_cache_tokens=1024, prefix_cache=True)
    draft = engine._speculation._draft_model
    assert draft is not None
    wish = {"max_tokens": 30, "rules": rules, "ignore_eos": True}
    made = [spoken(engine, i, (i % 2, 150), wish) for i in range(3)]
    for _ in range(2):
        run(engine, made)
    stats = engine.stats
    assert stats.draft_accepted_tokens == stats.draft_proposed_tokens > 100
    assert stats.steps < 30
    assert len(draft._encoded) == 2


def test_a_tenants_earlier_text_is_drafted(checkpoint: CheckpointMaker) -> None:
    """An earlier transcript of the same tenant provides draft tokens, another tenant's does not."""
    engine = eager(load_engine(SMALL, checkpoint("whisper")), "recent")
    window = window_of(random_features(0, 80, 150))

    def accepted(salt: str) -> int:
        before = engine.stats.recent_accepted_tokens
        made = transcribe_requests(
            PROMPT, GREEDY, engine.info, request_id="r", encoder_input=window, cache_salt=salt
        )
        run(engine, made)
        return engine.stats.recent_accepted_tokens - before

    assert accepted("one") == 0
    assert accepted("two") == 0
    assert accepted("one") > 20


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_a_shared_encoder_is_there_once(
    executor: str, checkpoint: CheckpointMaker, distilled: Path
) -> None:
    """In the ledger and in use: the draft model's weights are those of its decoder."""
    folder = checkpoint("whisper")
    overrides: dict[str, Any] = {"executor": executor, "dtype": "float32"}
    alone = load_engine(dataclasses.replace(SMALL, **overrides), folder)
    engine = drafting(folder, distilled, kv_cache_tokens=1024, **overrides)
    ledgers = alone.info.ledger, engine.info.ledger
    assert ledgers[0] is not None
    assert ledgers[1] is not None
    encoder = sum(
        value.size
        for name, value in load_file(distilled / "model.safetensors").items()
        if name.startswith("model.encoder")
    )
    decoder = ledgers[1].weights - ledgers[0].weights
    assert 0 < decoder < 4 * encoder
    made = [spoken(engine, 0, (0, 150), {"max_tokens": 30})]
    assert seen(run(engine, made)) == seen(run(alone, made))
    assert engine.stats.draft_proposed_tokens > 0
