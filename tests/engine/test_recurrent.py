"""Recurrent layers in the engine: kept states, their memory, and what is refused."""

import dataclasses
import logging
from typing import Any

import msgspec
import numpy as np
import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.errors import RequestError, SettingsError
from galley.ops.batch import Batch
from galley.ops.executor import forward
from galley.plan.sizes import ModelSizes
from galley.service.requests import expand
from galley.settings.engine import EngineSettings, ExecutorName
from galley.types.model_info import Ledger
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker

SETTINGS = EngineSettings(threads=1, kv_cache_tokens=1024, state_interval=32)
PARAMS = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
VARIANTS = ("granite-hybrid", "qwen3-next")


def generate(engine: Engine, prompt: list[int], name: str) -> list[int]:
    engine.add(expand(prompt, PARAMS, engine.info, request_id=name)[0])
    tokens: list[int] = []
    while engine.has_work:
        for output in engine.step():
            tokens += output.tokens
        engine.check_blocks()
    return tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_longer_text_continues_from_the_last_kept_state(
    variant: str, checkpoint: CheckpointMaker
) -> None:
    """States are kept while a prompt is computed, and while the answer is generated."""
    folder, prompt = checkpoint(variant), random_ids(3, 75)
    engine = load_engine(SETTINGS, folder)
    answer = generate(engine, prompt, "first")
    assert engine.stats.prefix_hit_tokens == 0
    assert generate(engine, prompt, "again") == answer
    assert engine.stats.prefix_hit_tokens == 64
    more = [*prompt, *answer, 7]
    text = generate(engine, more, "more")
    assert engine.stats.prefix_hit_tokens == 64 + 96
    alone = load_engine(dataclasses.replace(SETTINGS, prefix_cache=False), folder)
    assert generate(alone, more, "more") == text


@pytest.mark.parametrize("executor", ["cpu", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_ledger_counts_the_states_that_there_are(
    variant: str, executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    ledgers: list[Ledger] = []
    settings = dataclasses.replace(SETTINGS, executor=executor, max_running=3)
    engine = load_engine(settings, checkpoint(variant), on_ledger=ledgers.append)
    [ledger] = ledgers
    assert ledger.state_slots == 3 + 1024 // 32
    assert ledger.states == ledger.state_slots * engine.executor.bytes_per_state()
    assert engine._kv.states is not None
    assert engine._kv.states.pool.total == ledger.state_slots
    program = read_model(settings, checkpoint(variant)).program
    kept = 4 * sum(state.rows * state.width for state in program.states)
    assert kept <= engine.executor.bytes_per_state() <= 2 * kept
    sizes = ModelSizes.of(program, "float32", "float32")
    assert sizes.kv_bytes(1) - sizes.state == 16 * sizes.kv_per_token
    if executor == "cpu":
        assert sizes.state == engine.executor.bytes_per_state()


def test_few_states_let_requests_wait(checkpoint: CheckpointMaker) -> None:
    """Two slots: one request runs at a time, or continues from the state that another left."""
    folder, prompts = checkpoint("granite-hybrid"), [random_ids(i, 70) for i in range(3)]
    settings = dataclasses.replace(SETTINGS, kv_memory_fraction=1e-9)
    ledgers: list[Ledger] = []
    engine = load_engine(settings, folder, on_ledger=ledgers.append)
    assert ledgers[0].state_slots == 2
    roomy = load_engine(SETTINGS, folder)
    expected = [generate(roomy, prompt, f"r{i}") for i, prompt in enumerate(prompts)]
    texts: dict[str, list[int]] = {f"r{i}-0": [] for i in range(3)}
    for i, prompt in enumerate(prompts):
        engine.add(expand(prompt, PARAMS, engine.info, request_id=f"r{i}")[0])
    while engine.has_work:
        for output in engine.step():
            texts[output.request_id] += output.tokens
        engine.check_blocks()
    assert list(texts.values()) == expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    variant: str, executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    """This includes a sequence that continues from a state left by another in the same step."""
    settings = dataclasses.replace(SETTINGS, executor=executor)
    runs = load_engine(settings, checkpoint(variant)).executor
    shared, tails = random_ids(1, 32), [random_ids(2, 5), random_ids(3, 9)]
    alone = []
    for tail in tails:
        ids = np.array([*shared, *tail])
        at = np.arange(len(ids))
        tables = (np.arange(10, 13),)
        alone.append(forward(runs, Batch(ids, at, np.array([0, len(ids)]), tables, at[-1:])).copy())
    ids = np.array([*shared, *tails[0], *tails[1]])
    positions = np.array([*range(37), *range(32, 41)])
    both = (np.array([1, 2, 3]), np.array([1, 2, 4]))
    states = (np.array([-1, 32, 5, 37, 0]), np.array([5, 9, 1]))
    batch = Batch(ids, positions, np.array([0, 37, 46]), both, np.array([36, 45]), states=states)
    together = forward(runs, batch)
    assert np.array_equal(together, np.concatenate(alone))


def test_what_a_state_cannot_do_is_reported(
    checkpoint: CheckpointMaker, caplog: pytest.LogCaptureFixture
) -> None:
    folder = checkpoint("granite-hybrid")
    with caplog.at_level(logging.INFO, "galley.engine"):
        engine = load_engine(SETTINGS, folder)
    assert "speculation is off" in caplog.text
    beams = msgspec.structs.replace(PARAMS, num_beams=2)
    with pytest.raises(RequestError, match="num_beams is 2"):
        expand([5, 6], beams, engine.info, request_id="r")
    changes: dict[str, Any] = {"draft_model": str(checkpoint("llama"))}
    with pytest.raises(SettingsError, match="cannot undo rejected draft tokens"):
        load_engine(dataclasses.replace(SETTINGS, **changes), folder)
    with pytest.raises(SettingsError, match="state_interval must be a multiple of 16"):
        EngineSettings(state_interval=40)
