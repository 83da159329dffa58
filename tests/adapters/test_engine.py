"""Adapters in the engine: loaded on demand, kept while in use, without effect on other requests."""

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from galley import SamplingParams
from galley.engine.engine import Engine as NativeEngine
from galley.engine.loaders import load_engine
from galley.errors import ModelError, SettingsError
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import Adapter, EngineRequest, Output
from tests.adapters.peft import adapter_in, make_adapter, merged
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker
from tests.engine.drafts import eager
from tests.engines import native

SLOTS = 2
_ids = itertools.count()


@pytest.fixture(scope="module")
def adapters(
    checkpoint: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory
) -> "list[Adapter]":
    at = tmp_path_factory.mktemp("adapters")
    return [make_adapter(at / f"a{i}", checkpoint("llama"), seed=i, size=0.1) for i in range(6)]


@pytest.fixture
def engine(checkpoint: CheckpointMaker) -> NativeEngine:
    settings = EngineSettings(
        dtype="float32", kv_cache_tokens=8192, max_adapters=SLOTS, threads=2, max_running=32
    )
    return native(load_engine(settings, checkpoint("llama")))


def request(
    engine: NativeEngine,
    adapter: Adapter | None,
    *,
    prompt: Sequence[int] = (),
    count: int = 12,
    temperature: float = 0.0,
    seed: int = 0,
) -> EngineRequest:
    params = SamplingParams(temperature=temperature, max_tokens=count, ignore_eos=True, seed=seed)
    prompt = list(prompt) or random_ids(3, 40)
    [made] = expand(prompt, params, engine.info, request_id=f"r{next(_ids)}")
    return msgspec.structs.replace(made, adapter=adapter)


def run(
    engine: NativeEngine,
    requests: Sequence[EngineRequest],
    meanwhile: Callable[[int], None] = lambda step: None,
) -> "list[list[int]]":
    """Return each request's tokens; fail if one ends in an error."""
    texts, ends = outputs(engine, requests, meanwhile)
    assert all(end.finish_reason != "error" for end in ends.values()), ends
    return texts


def outputs(
    engine: NativeEngine,
    requests: Sequence[EngineRequest],
    meanwhile: Callable[[int], None] = lambda step: None,
) -> "tuple[list[list[int]], dict[str, Output]]":
    texts: dict[str, list[int]] = {made.id: [] for made in requests}
    ends: dict[str, Output] = {}
    for made in requests:
        engine.add(made)
    for step in itertools.count():
        if not engine.has_work:
            break
        meanwhile(step)
        for output in engine.step():
            texts[output.request_id] += output.tokens
            if output.finish_reason:
                ends[output.request_id] = output
        engine.check_blocks()
    return list(texts.values()), ends


def test_texts_are_those_of_merged_models_and_prefixes_are_not_shared(
    engine: NativeEngine, adapters: list[Adapter], checkpoint: CheckpointMaker
) -> None:
    chosen = [adapters[0], None, adapters[1]]
    texts = run(engine, [request(engine, adapter) for adapter in chosen])
    assert engine.stats.prefix_hit_tokens == 0
    for adapter, text in zip(chosen, texts, strict=True):
        with torch.inference_mode():
            made = merged(checkpoint("llama"), adapter).generate(
                torch.tensor([random_ids(3, 40)]),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
            )
        assert text == made[0, 40:].tolist()
    assert len({tuple(text) for text in texts}) == 3
    # The same again: each finds its own blocks, and their content is right.
    assert run(engine, [request(engine, adapter) for adapter in chosen]) == texts
    assert engine.stats.prefix_hit_tokens == 3 * 32


def test_other_weights_under_the_same_name_share_nothing(
    engine: NativeEngine, adapters: list[Adapter], tmp_path: Path
) -> None:
    folder = tmp_path / "same"
    shutil.copytree(adapters[0].path, folder)
    [before] = run(engine, [request(engine, adapter_in(folder))])
    old = adapter_in(folder)
    engine.unload_adapter(old)
    shutil.copy(Path(adapters[1].path) / "adapter_model.safetensors", folder)
    assert adapter_in(folder).digest != old.digest
    [after] = run(engine, [request(engine, adapter_in(folder))])
    assert engine.stats.prefix_hit_tokens == 0
    assert [[before], [after]] == [run(engine, [request(engine, a)]) for a in adapters[:2]]
    _, ends = outputs(engine, [request(engine, old)])
    [end] = ends.values()
    assert end.finish_reason == "error"
    assert "same: its files have changed" in str(end.error)


def test_streams_do_not_change_while_adapters_come_and_go(
    engine: NativeEngine, adapters: list[Adapter]
) -> None:
    def sixteen() -> list[EngineRequest]:
        wear = [adapters[0], None]
        return [
            request(
                engine, wear[i % 2], prompt=random_ids(i, 5 + i), count=80, temperature=0.9, seed=i
            )
            for i in range(16)
        ]

    quiet = run(engine, sixteen())
    changes = 0

    def change(step: int) -> None:
        nonlocal changes
        if step % 3 == 0:
            other = adapters[1 + changes % 5]
            engine.load_adapter(other).result()
            changes += 1
        elif step % 3 == 1:
            engine.unload_adapter(adapters[1 + (changes - 1) % 5])

    assert run(engine, sixteen(), change) == quiet
    assert changes > 8
    assert engine.stats.adapters_loaded <= SLOTS


def test_the_least_recently_used_is_evicted_and_used_ones_stay(
    engine: NativeEngine, adapters: list[Adapter]
) -> None:
    alone = [run(engine, [request(engine, adapter)])[0] for adapter in adapters]
    assert engine.stats.adapter_loads == len(adapters)
    assert engine.stats.adapter_evictions == len(adapters) - SLOTS
    run(engine, [request(engine, adapters[5])])
    run(engine, [request(engine, adapters[4])])  # both are loaded
    assert engine.stats.adapter_loads == len(adapters)
    run(engine, [request(engine, adapters[0])])  # instead of 5
    run(engine, [request(engine, adapters[4])])
    assert engine.stats.adapter_loads == len(adapters) + 1
    # More adapters at a time than slots, some of them twice; base requests wait for none.
    order = [0, 1, 2, 3, 4, 5, 0, 1, 2]
    began = engine.stats.adapter_loads
    several = [request(engine, adapters[i]) for i in order]
    texts = run(engine, [*several, request(engine, None)])
    assert texts[:-1] == [alone[i] for i in order]
    assert engine.stats.adapter_loads - began <= len(order)
    assert engine.stats.adapters_loaded == SLOTS


def test_requests_waiting_for_a_slot_are_not_overtaken(
    engine: NativeEngine, adapters: list[Adapter]
) -> None:
    """Requests for adapters 0 and 1 never stop; one for 2 arrives in between and is served."""
    waiting = request(engine, adapters[2])
    for made in (*(request(engine, adapters[i], count=9 + i) for i in range(2)), waiting):
        engine.add(made)
    finished: list[str] = []
    while waiting.id not in finished:
        if engine.stats.running + engine.stats.waiting < 6:
            engine.add(request(engine, adapters[len(finished) % 2], count=5 + len(finished) % 7))
        finished += [output.request_id for output in engine.step() if output.finish_reason]
        assert len(finished) < 400


def test_aborted_requests_release_their_adapter(
    engine: NativeEngine, adapters: list[Adapter]
) -> None:
    held = [request(engine, adapters[i], count=400) for i in (0, 1)]
    for made in (*held, request(engine, adapters[2])):
        engine.add(made)
    while engine.stats.running < 2:
        engine.step()
    assert engine.stats.waiting == 1
    engine.abort([held[0].id])
    while engine.stats.waiting:
        engine.step()
        time.sleep(0.001)
    engine.abort([held[1].id])
    while engine.has_work:
        engine.step()
    assert engine.stats.adapter_evictions == 1


def test_what_cannot_be_loaded_is_the_requests_error_alone(
    engine: NativeEngine, adapters: list[Adapter], tmp_path: Path
) -> None:
    gone = make_adapter(tmp_path / "gone", Path(engine.info.path))
    shutil.rmtree(gone.path)
    with pytest.raises(ModelError, match=r"adapter gone: .*adapter_config.json"):
        engine.load_adapter(gone).result()
    high = make_adapter(tmp_path / "high", Path(engine.info.path), rank=17)
    with pytest.raises(
        ModelError, match="rank 17, but adapter_rank allows 16; set adapter_rank to 17"
    ):
        engine.load_adapter(high).result()
    good = request(engine, adapters[0])
    texts, ends = outputs(engine, [request(engine, gone), good, request(engine, high)])
    assert [end.finish_reason for end in ends.values()].count("error") == 2
    assert texts[1] == run(engine, [request(engine, adapters[0])])[0]


def test_draft_tokens_from_recent_texts_are_separate_for_each_adapter(
    engine: NativeEngine, adapters: list[Adapter]
) -> None:
    """Texts of one adapter provide no draft tokens for another, but they do for itself."""
    eager(engine, "recent")
    run(engine, [request(engine, adapters[0], count=60)])
    run(engine, [request(engine, None, count=60)])
    before = engine.stats.recent_accepted_tokens
    run(engine, [request(engine, adapters[0], count=60)])
    assert engine.stats.recent_accepted_tokens > before + 20


def test_the_ledger_has_the_slots_and_speech_takes_none(checkpoint: CheckpointMaker) -> None:
    def ledger(**settings: Any) -> tuple[int, int]:
        loaded = load_engine(
            EngineSettings(kv_cache_tokens=512, dtype="bfloat16", **settings), checkpoint("llama")
        )
        assert loaded.info.ledger is not None
        return loaded.info.ledger.adapters, loaded.info.ledger.total

    none, base = ledger()
    assert none == 0
    one, total = ledger(max_adapters=1)
    assert total >= base + one
    assert ledger(max_adapters=5) == (5 * one, total + 4 * one)
    assert ledger(max_adapters=1, adapter_rank=32)[0] == 2 * one
    # Both factors of 7 layers for each of the model's two, two bytes each, outputs in tiles of sixteen.
    outputs_and_inputs = [(48, 48), (24, 48), (24, 48), (48, 48), (88, 48), (88, 48), (48, 88)]
    assert one >= 2 * 2 * 16 * sum(map(sum, outputs_and_inputs))
    with pytest.raises(SettingsError, match=r"max_adapters is 1, but .* is a speech model"):
        load_engine(EngineSettings(max_adapters=1), checkpoint("whisper"))
