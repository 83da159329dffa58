"""A draft model: the steps it saves, what it must not change, and which models are refused."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galley.engine.loaders import load_engine
from galley.errors import GalleyError, SettingsError
from galley.settings.engine import EngineSettings
from tests.conftest import CheckpointMaker
from tests.engine.drafts import drafting
from tests.engine.requests import PROMPTS, WISHES, request, run, seen
from tests.thorough import examples

SMALL = EngineSettings(threads=1, kv_cache_tokens=512)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of the same vocabulary that seldom agrees."""
    from tests.checkpoints import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("other"), "llama-mqa-odd", seed=1)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wished=st.lists(st.tuples(PROMPTS, WISHES), min_size=1, max_size=5),
    agrees=st.booleans(),
    chosen=st.sampled_from(["auto", "draft"]),
    budget=st.sampled_from([8, 24, 512]),
    tokens=st.sampled_from([192, 1024]),
    prefix_cache=st.booleans(),
)
def test_texts_are_those_without(
    wished: list[tuple[list[int], dict[str, Any]]],
    agrees: bool,
    chosen: str,
    budget: int,
    tokens: int,
    prefix_cache: bool,
    checkpoint: CheckpointMaker,
    other: Path,
) -> None:
    """Prompts longer than a draft step, preempted, shared; each request also runs a second time."""
    folder = checkpoint("llama")
    expecting = load_engine(
        dataclasses.replace(SMALL, speculation="off", kv_cache_tokens=1024), folder
    )
    made = [request(i, *wish, expecting) for i, wish in enumerate(wished)]
    expected = seen(run(expecting, made))
    engine = drafting(
        folder,
        folder if agrees else other,
        speculation=chosen,
        kv_cache_tokens=tokens,
        max_batch_tokens=budget,
        max_running=4,
        prefix_cache=prefix_cache,
    )
    for _ in range(2):
        assert seen(run(engine, made)) == expected
        assert not engine._speculation._draft_model._progress  # type: ignore[union-attr]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_that_agrees_saves_steps(temperature: float, checkpoint: CheckpointMaker) -> None:
    """With the same noise, its draft tokens are right at any temperature."""
    engine = drafting(checkpoint("llama"), checkpoint("llama"), kv_cache_tokens=1024)
    params = {"temperature": temperature, "max_tokens": 60, "ignore_eos": True}
    made = [
        request(i, list(range(5 + i, 45 + 9 * i)), params | {"seed": i}, engine) for i in range(3)
    ]
    outputs = run(engine, made)
    stats = engine.stats
    assert stats.steps < 12
    assert stats.draft_accepted_tokens == stats.draft_proposed_tokens > 150
    assert stats.prompt_proposed_tokens == stats.recent_proposed_tokens == 0
    for received in outputs.values():
        timing = received[-1].timing
        assert timing is not None
        assert timing.accepted == timing.proposed > 50
    assert (
        stats.forward_seconds + stats.schedule_seconds + stats.emit_seconds < stats.busy_seconds * 2
    )
    assert stats.schedule_seconds >= 0


def test_rejected_draft_tokens_leave_no_trace(checkpoint: CheckpointMaker, other: Path) -> None:
    """A model that is sometimes right: what it computed for rejected tokens is computed again."""
    folder = checkpoint("llama")
    engine = drafting(folder, folder, kv_cache_tokens=1024)
    plain = load_engine(dataclasses.replace(SMALL, speculation="off"), folder)
    params = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
    made = [request(0, list(range(5, 25)), params, engine)]
    expected = seen(run(plain, made))
    draft = engine._speculation._draft_model
    assert draft is not None
    honest, calls = draft.draft, [0]

    def spoilt(wanted: Any) -> Any:
        calls[0] += 1
        draft_tokens = [list(own) for own in honest(wanted)]
        for own in draft_tokens:
            if calls[0] % 2 and len(own) > 2:
                own[2] = 5 if own[2] != 5 else 6
        return draft_tokens

    engine._speculation._speculator._drafter.draft = spoilt  # type: ignore[union-attr, method-assign]
    assert seen(run(engine, made)) == expected
    stats = engine.stats
    # Every second time all are right, even after wrong ones.
    assert stats.draft_accepted_tokens > 30
    assert stats.draft_accepted_tokens < stats.draft_proposed_tokens


def test_the_ledger_counts_both(checkpoint: CheckpointMaker, other: Path) -> None:
    folder = checkpoint("llama")
    one, two, both = (
        load_engine(dataclasses.replace(SMALL, draft_model=draft), path).info.ledger
        for path, draft in ((folder, None), (other, None), (folder, str(other)))
    )
    assert one is not None
    assert two is not None
    assert both is not None
    assert both.weights == one.weights + two.weights
    assert both.kv_per_token == one.kv_per_token + two.kv_per_token
    assert both.buffers > max(one.buffers, two.buffers)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculation": "draft"}, "no draft_model is given"),
        (
            {"draft_model": "some", "speculation": "off"},
            "speculation is 'off', which does not use it",
        ),
        ({"draft_model": "some", "speculation": "prompt"}, "which does not use it"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        dataclasses.replace(SMALL, **changes)


def test_models_that_cannot_draft_are_refused(
    checkpoint: CheckpointMaker, other: Path, tmp_path: Path
) -> None:
    folder, whisper = checkpoint("llama"), checkpoint("whisper")
    foreign = tmp_path / "foreign"
    shutil.copytree(other, foreign)
    tokenizer = json.loads((foreign / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    for path, draft, said in (
        (folder, whisper, "is a speech model and the model is not"),
        (whisper, folder, "the model is a speech model and draft_model .* is not"),
        (whisper, checkpoint("whisper-odd-128"), "mels is 128, not 80"),
        (folder, checkpoint("mistral-window"), "sliding window"),
        (folder, tmp_path / "nowhere", "nowhere"),
        (folder, foreign, '"[ab]" is token'),
    ):
        with pytest.raises(GalleyError, match=said):
            load_engine(dataclasses.replace(SMALL, draft_model=str(draft)), path)
