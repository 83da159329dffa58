"""Layers with a sliding window release the blocks that have left it."""

import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.ops.cpu_plan import kv_bytes_per_block, kv_bytes_per_token
from galley.service.requests import expand
from galley.settings.engine import EngineSettings, ExecutorName
from galley.types import BLOCK_TOKENS
from tests.conftest import CheckpointMaker

PARAMS = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
PROMPT = [(7 * i) % 90 + 5 for i in range(100)]


def generate(engine: Engine, prompt: list[int], name: str = "r") -> tuple[list[int], list[int]]:
    """Return the text, and the number of blocks held after each of its tokens."""
    engine.add(expand(prompt, PARAMS, engine.info, request_id=name)[0])
    tokens: list[int] = []
    held: list[int] = []
    while engine.has_work:
        for output in engine.step():
            tokens += output.tokens
            held.append(engine.stats.kv_used_blocks)
        engine.check_blocks()
    return tokens, held


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_a_long_text_holds_no_more_than_its_window(
    executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    settings = EngineSettings(executor=executor, threads=1, kv_cache_tokens=512)
    engine = load_engine(settings, checkpoint("mistral-window"))
    [group] = engine._kv.groups
    assert 0 < group.window < 100
    _, held = generate(engine, PROMPT)
    assert max(held[BLOCK_TOKENS:-1]) <= -(-group.window // BLOCK_TOKENS) + 1
    assert held[-1] == 0


def test_what_the_window_left_is_found_again(checkpoint: CheckpointMaker) -> None:
    settings = EngineSettings(threads=1, kv_cache_tokens=512)
    engine = load_engine(settings, checkpoint("mistral-window"))
    first, _ = generate(engine, PROMPT)
    hits = engine.stats.prefix_hit_tokens
    again, _ = generate(engine, PROMPT, "again")
    assert again == first
    assert engine.stats.prefix_hit_tokens - hits == (len(PROMPT) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_small_pools_hold_long_texts_of_windows(checkpoint: CheckpointMaker) -> None:
    """Three texts of 250 tokens in blocks for 400: windows free blocks, so nothing is preempted."""
    settings = EngineSettings(threads=1, kv_cache_tokens=400, prefix_cache=False)
    engine = load_engine(settings, checkpoint("mistral-window"))
    alone, _ = generate(engine, PROMPT)
    for i in range(3):
        engine.add(expand(PROMPT, PARAMS, engine.info, request_id=f"r{i}")[0])
    texts: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            texts.setdefault(output.request_id, []).extend(output.tokens)
    assert list(texts.values()) == [alone] * 3
    assert engine.stats.preemptions == 0


def test_blocks_of_mixed_windows_share_pages(checkpoint: CheckpointMaker) -> None:
    """A block belongs to one group at a time, so it takes as many pages as a group has layers."""
    settings = EngineSettings(threads=1, kv_cache_tokens=512)
    engine = load_engine(settings, checkpoint("qwen2-window"))
    program = read_model(settings, checkpoint("qwen2-window")).program
    groups = engine._kv.groups
    assert len({group.window for group in groups}) == 2
    layers = max(len(group.layers) for group in groups)
    whole = kv_bytes_per_token(program, engine.info.require_program().kv_dtype) * BLOCK_TOKENS
    block = engine._executor.kv_bytes_per_block()
    assert (
        block
        == whole * layers // len(program.kv)
        == kv_bytes_per_block(program, engine.info.require_program().kv_dtype)
    )
    assert engine.info.require_text().kv_cache_tokens == 512
    assert engine.stats.kv_total_blocks == 512 // BLOCK_TOKENS * len(groups)
