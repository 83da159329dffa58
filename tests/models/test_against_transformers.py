"""Logits and greedy tokens of every family, shape and rope scaling against transformers in float32."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams
from galley.ops.batch import Batch
from galley.ops.executor import forward
from galley.settings.engine import DType, ExecutorName
from galley.types import BLOCK_TOKENS
from tests import thorough
from tests.checkpoints import (
    KNOWN_OPS,
    VARIANTS,
    make_checkpoint,
    random_ids,
)
from tests.conftest import CheckpointMaker
from tests.models.chunks import executor_of, grouped, run_chunks

LENGTH = 150


def truth(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",  # others require widths of whole cache lines
    ).eval()


EXECUTORS: tuple[ExecutorName, ...] = ("reference", "cpu")


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_and_do_not_depend_on_chunks(
    variant: str, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    ids = random_ids(1, LENGTH)
    with torch.inference_mode():
        expected = truth(folder)(torch.tensor([ids])).logits[0].numpy()
    executor = executor_of(folder, executor=name)
    whole = run_chunks(executor, ids, [LENGTH], first_block=5)
    assert np.abs(whole - expected).max() <= 1e-4 * np.abs(expected).max()
    # Each variant has its own divisions of the text.
    number = 3 * [*VARIANTS].index(variant)
    for seed in range(number, number + (3 if thorough.THOROUGH else 1)):
        cuts = sorted(np.random.default_rng(seed).choice(range(1, LENGTH), 7, replace=False))
        chunks = np.diff([0, *cuts, LENGTH]).tolist()
        assert np.array_equal(run_chunks(executor, ids, chunks, first_block=40), whole), chunks


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama-mqa-odd", "qwen2-window", "qwen3"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    variant: str, dtype: DType, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    executor = executor_of(checkpoint(variant), dtype, name)
    rng = np.random.default_rng(7)
    lengths = [1, 2, 15, 16, 17, 33, 40, 64, 90]
    prompts = [random_ids(10 + i, n) for i, n in enumerate(lengths)]
    alone = [run_chunks(executor, ids, [len(ids)], first_block=0)[-1] for ids in prompts]
    for size in (2, 5, 9):
        chosen = rng.permutation(len(prompts))[:size]
        rows = [prompts[i] for i in chosen]
        counts = [-(-len(ids) // BLOCK_TOKENS) for ids in rows]
        first = np.cumsum([1, *counts])
        starts = np.cumsum([0, *map(len, rows)])
        batch = Batch(
            tokens=np.concatenate(rows),
            positions=np.concatenate([np.arange(len(ids)) for ids in rows]),
            starts=starts,
            tables=grouped(
                executor, [np.arange(f, f + n) for f, n in zip(first, counts, strict=False)]
            ),
            wanted=starts[1:] - 1,
        )
        for row, index in zip(forward(executor, batch), chosen, strict=True):
            assert np.array_equal(row, alone[index]), lengths[index]


PROMPT_LENGTHS = (1, 3, 16, 17, 40, 90)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


KINDS = frozenset({"llama", "mistral-window", "granite-hybrid", "deepseek-v3", "llama4"})
"""A variant for each kind of cache that the engine keeps: whole, windows, states, latents, chunks."""


def greedy_cases() -> list[Any]:
    """Every variant on both executors.

    The reference executor is slow. Its logits of every variant are compared above, and both executors share
    the engine, so most variants run on it only in ``make thorough``.
    """
    return [
        thorough.unless(name == "cpu" or variant in KINDS, variant, name)
        for variant in VARIANTS
        for name in EXECUTORS
    ]


@pytest.mark.parametrize(("variant", "name"), greedy_cases())
def test_greedy_tokens_agree_in_mixed_batches(
    variant: str, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    """Every two of chunk size, prefix cache and forced preemption; for some variants, all combinations."""
    folder = checkpoint(variant)
    shared = random_ids(3, 40)
    prompts = [random_ids(20 + n, n) for n in PROMPT_LENGTHS] + [[*shared, 7], [*shared, 8, 9]]
    expected: list[list[int]] = []
    combinations = list(itertools.product((8, 64), (True, False), (True, False)))
    if variant not in KINDS and not thorough.THOROUGH:
        combinations = [c for c in combinations if ((c[0] == 8) + c[1] + c[2]) % 2]
    if variant in KNOWN_OPS:
        combinations = [(8, True, True), (64, False, False)]
    if name == "reference" and not (thorough.THOROUGH and variant in ("llama", "mistral-window")):
        combinations = [(64, True, True)]
    for chunk, prefix_cache, tight in combinations:
        with LLM(
            folder,
            executor=name,
            max_batch_tokens=chunk,
            max_running=8,
            prefix_cache=prefix_cache,
            state_interval=BLOCK_TOKENS,
            # 128 tokens hold the longest request alone, but never the batch of 8.
            kv_cache_tokens=128 if tight else 2048,
            # Speculation may end requests before the batch is full, depending on step times.
            speculation="off" if tight else "auto",
            threads=1,
        ) as llm:
            preempted = 0
            for _ in range(2):
                outputs = llm.generate(prompts, GREEDY)
                got = [o.token_ids for o in outputs]
                expected = expected or greedy(truth(folder), prompts, got)
                assert got == expected, (chunk, prefix_cache, tight)
                preempted += sum(o.timing.preemptions for o in outputs)
            assert (preempted > 0) == tight
            assert (outputs[-1].cached_tokens > 0) == prefix_cache or tight


def greedy(model: Any, prompts: list[list[int]], texts: list[list[int]]) -> list[list[int]]:
    """Return the likeliest token at each place of the texts. Texts equal to these are the model's own.

    One forward pass for each text, instead of one for each token, saves most of the time of these tests.
    """
    likeliest = []
    for prompt, text in zip(prompts, texts, strict=True):
        assert len(text) == GREEDY.max_tokens
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *text[:-1]]])).logits[0]
        likeliest.append(logits[len(prompt) - 1 :].argmax(-1).tolist())
    return likeliest


@pytest.mark.parametrize("name", EXECUTORS)
def test_longrope_beyond_what_was_first_trained(
    name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    """A longer context uses the long factors from the first token on, in chunks, too."""
    folder, prompts = checkpoint("phi3-longrope"), [random_ids(5, 270), random_ids(6, 300)]
    how: dict[str, Any] = {"executor": name, "kv_cache_tokens": 1024, "threads": 1}
    with LLM(folder, max_model_len=400, max_batch_tokens=64, **how) as llm:
        got = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    assert got == greedy(truth(folder), prompts, got)
    with LLM(folder, **how) as llm:
        assert llm.info.require_text().max_model_len == 256
        got = [output.token_ids for output in llm.generate([random_ids(7, 200)], GREEDY)]
    assert got == greedy(truth(folder), [random_ids(7, 200)], got)


def test_bfloat16_stays_near_float32(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama-head-dim-bias")
    ids = random_ids(4, 60)
    exact = run_chunks(executor_of(folder), ids, [60], first_block=0)
    rounded = run_chunks(executor_of(folder, "bfloat16"), ids, [60], first_block=0)
    error = np.abs(rounded - exact)
    # bfloat16 has 8 bits of mantissa; a few layers of rounding stay within some of its steps.
    assert error.mean() < 0.02 * np.abs(exact).max()
    assert error.max() > 0


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path / "whole")
    shards = make_checkpoint(tmp_path / "shards", max_shard_size="40KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    ids = random_ids(5, 30)
    assert np.array_equal(
        run_chunks(executor_of(whole), ids, [30], first_block=0),
        run_chunks(executor_of(shards), ids, [30], first_block=0),
    )


def test_score_is_the_log_softmax_of_transformers(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("qwen2")
    prompts = [random_ids(6, 70), random_ids(7, 2), [5]]
    with LLM(folder, max_batch_tokens=16, threads=1) as llm:
        scores = llm.score(prompts)
    model = truth(folder)
    for ids, got in zip(prompts, scores, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
        expected = [logprobs[i, token].item() for i, token in enumerate(ids[1:])]
        assert got == pytest.approx(expected, abs=1e-3)


def test_requests_that_arrive_together_compute_their_prefix_once(
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("mistral-window")
    shared = random_ids(8, 100)
    prompts = [[*shared, 5 + i] for i in range(6)]
    with LLM(folder, max_batch_tokens=64, max_running=8, threads=1) as llm:
        together = llm.generate(prompts, GREEDY)
        computed = llm._engine.stats.prefill_tokens
    with LLM(folder, prefix_cache=False, threads=1) as llm:
        apart = llm.generate(prompts, GREEDY)
    assert [o.token_ids for o in together] == [o.token_ids for o in apart]
    assert computed == 101 + 5 * (101 - 96)
