"""Speculation changes how many steps a text takes, but no token, log-probability or end."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galley import LLM, SamplingParams
from galley.engine import build_generation
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.warm_up import MEASURED_ROWS
from galley.settings.engine import EngineSettings, Speculation
from galley.speculation.row_costs import RowCosts
from tests.conftest import CheckpointMaker
from tests.engine.drafts import eager
from tests.engine.requests import PROMPTS, WISHES, request, run, seen
from tests.thorough import examples


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wished=st.lists(st.tuples(PROMPTS, WISHES), min_size=1, max_size=5),
    chosen=st.sampled_from(["auto", "prompt", "recent"]),
    budget=st.sampled_from([8, 24, 512]),
    tokens=st.sampled_from([192, 1024]),
    prefix_cache=st.booleans(),
)
def test_texts_are_those_without_speculation(
    wished: list[tuple[list[int], dict[str, Any]]],
    chosen: Speculation,
    budget: int,
    tokens: int,
    prefix_cache: bool,
    checkpoint: CheckpointMaker,
) -> None:
    """In chunks, preempted, with and without the prefix cache; each request also runs a second time."""
    plain = EngineSettings(threads=1, speculation="off", kv_cache_tokens=1024)
    tight = EngineSettings(
        threads=1,
        speculation="off",
        kv_cache_tokens=tokens,
        max_batch_tokens=budget,
        max_running=4,
        prefix_cache=prefix_cache,
    )
    expecting = load_engine(plain, checkpoint("llama"))
    made = [request(i, *wish, expecting) for i, wish in enumerate(wished)]
    expected = seen(run(expecting, made))
    engine = eager(load_engine(tight, checkpoint("llama")), chosen)
    for _ in range(2):
        assert seen(run(engine, made)) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_was_served_before_takes_few_steps(
    temperature: float, checkpoint: CheckpointMaker
) -> None:
    """Only for the same tenant, and only if the request allows it."""
    off = EngineSettings(threads=1, speculation="off", kv_cache_tokens=512)
    engine = eager(load_engine(off, checkpoint("llama")), "recent")
    params = {"temperature": temperature, "seed": 4, "max_tokens": 60, "ignore_eos": True}
    prompt = list(range(5, 25))

    def steps(**wish: Any) -> int:
        before = engine.stats.steps
        [outputs] = run(engine, [request(0, prompt, params | wish, engine)]).values()
        timing = outputs[-1].timing
        assert timing is not None
        assert timing.accepted <= timing.proposed
        assert (timing.accepted > 30) == (engine.stats.steps - before < 30)
        return engine.stats.steps - before

    assert steps(salt="one", speculation="off") == steps(salt="one") == steps(salt="two") == 60
    assert steps(salt="one") < 30
    assert steps(salt="one", speculation="off") == 60
    stats = engine.stats
    assert stats.recent_proposed_tokens >= stats.recent_accepted_tokens > 30
    assert stats.prompt_proposed_tokens == 0


def test_draft_tokens_without_a_gain_are_not_made(checkpoint: CheckpointMaker) -> None:
    off = EngineSettings(threads=1, speculation="off", kv_cache_tokens=512)
    engine = eager(load_engine(off, checkpoint("llama")), "auto", {1: 1.0, 2: 2.0})
    params = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "few": True}
    for _ in range(2):
        run(engine, [request(0, [5, 6, 7], params, engine)])
    assert engine.stats.prompt_proposed_tokens == engine.stats.recent_proposed_tokens == 0


@pytest.mark.parametrize("chosen", ["auto", "off"])
def test_steps_are_measured_where_tokens_are_drafted(
    chosen: Speculation, checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[int, float]] = []

    def costs(measured: dict[int, float]) -> RowCosts:
        made.append(measured)
        return RowCosts(measured)

    monkeypatch.setattr(build_generation, "RowCosts", costs)
    chose = EngineSettings(threads=1, kv_cache_tokens=512, speculation=chosen)
    load_engine(chose, checkpoint("llama"))
    load_engine(chose, checkpoint("whisper"))
    assert [sorted(rows) for rows in made] == 2 * (
        [sorted(MEASURED_ROWS)] if chosen == "auto" else []
    )


def test_stop_strings_cut_what_came_with_them(checkpoint: CheckpointMaker) -> None:
    """Tokens drawn in the same step after a stop string are neither returned nor counted."""
    with (
        LLM(checkpoint("llama"), threads=1, kv_cache_tokens=512, speculation="off") as plain,
        LLM(checkpoint("llama"), threads=1, kv_cache_tokens=512) as speculation,
    ):
        local = speculation._engine
        assert isinstance(local, Engine)
        eager(local, "auto")
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logprobs=1)
        prompt = [5, 6, 7, 8]
        text = plain.generate([prompt], params)[0].text
        for cut in range(4, len(text) - 3, 3):
            sampling = SamplingParams(
                temperature=0.0,
                max_tokens=60,
                ignore_eos=True,
                logprobs=1,
                stop=(text[cut : cut + 3],),
            )
            (one,), (other,) = (llm.generate([prompt], sampling) for llm in (plain, speculation))
            assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
            assert one.token_ids == other.token_ids
            assert one.logprobs == other.logprobs
        assert local.stats.prompt_accepted_tokens + local.stats.recent_accepted_tokens > 0
