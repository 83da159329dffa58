"""Seeds, the sampled distribution, penalties and stops, on the real engine."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from galley import LLM, SamplingParams
from galley.engine.logits_adjuster import LogitsAdjuster
from galley.engine.tasks.sample import record_of
from galley.errors import RequestError
from galley.ops.draws import NO_TOKEN, SAMPLING_RECORD, Draws, candidates, draw_all, noise
from galley.ops.sampling import token_logprob
from galley.types import Generate, SamplingDefaults
from tests.checkpoints import VOCAB_SIZE, random_ids
from tests.conftest import CheckpointMaker
from tests.thorough import examples

DEFAULTS = SamplingDefaults()
PROMPT = [9, 8, 7, 6]


def adjuster_of(
    params: SamplingParams, prompt: list[int], output: list[int], stop_ids: Iterable[int] = ()
) -> LogitsAdjuster:
    return LogitsAdjuster(Generate(prompt=prompt, sampling=params, output=output), stop_ids)


def seeded(seed: int, **changes: float) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True, **changes)  # type: ignore[arg-type]


def test_a_seed_gives_the_same_text_alone_in_a_batch_and_after_preemption(
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("llama")
    prompts = [random_ids(i, 5 + 3 * i) for i in range(32)]
    params = [seeded(100 + i, top_p=0.95) for i in range(32)]
    with LLM(folder, threads=1) as llm:
        alone = [llm.generate([p], s)[0].token_ids for p, s in zip(prompts, params, strict=True)]
        together = llm.generate(prompts, params)
    with LLM(folder, threads=1, kv_cache_tokens=256, max_batch_tokens=24) as llm:
        squeezed = llm.generate(prompts, params)
    assert sum(o.timing.preemptions for o in squeezed) > 0
    assert [o.token_ids for o in together] == alone
    assert [o.token_ids for o in squeezed] == alone
    assert len({tuple(tokens) for tokens in alone}) == 32


def test_choices_of_one_request_differ_and_repeat(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1) as llm:
        first, second = (
            llm.generate([[5, 6, 7]], msgspec.structs.replace(seeded(9), n=4)) for _ in range(2)
        )
        single = llm.generate([[5, 6, 7]], seeded(9))[0]
    texts = [choice.token_ids for choice in first[0].choices]
    assert texts == [choice.token_ids for choice in second[0].choices]
    assert len(set(map(tuple, texts))) == 4
    assert texts[0] == single.token_ids


def test_a_seed_of_minus_one_is_drawn(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1) as llm:
        texts = [llm.generate([[5, 6, 7]], seeded(-1))[0].token_ids for _ in range(4)]
        fixed = [llm.generate([[5, 6, 7]], seeded(-2))[0].token_ids for _ in range(2)]
    assert len(set(map(tuple, texts))) == 4
    assert fixed[0] == fixed[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 12},
        {"temperature": 1.5, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.2, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    ],
)
def test_samples_follow_the_reference_softmax(
    changes: dict[str, float], checkpoint: CheckpointMaker
) -> None:
    """Thousands of draws, one for each seed, against the softmax after transformers' warpers."""
    logits = truth_logits(checkpoint("llama-yarn"), PROMPT)
    params = SamplingParams(seed=0, **changes).resolved(DEFAULTS)  # type: ignore[arg-type]
    counts: Counter[int] = Counter()
    for seed in range(examples(20_000)):
        counts[drawn(logits, msgspec.structs.replace(params, seed=seed), len(PROMPT))] += 1
    assert_follows(counts, reference(logits, params).numpy())


def test_the_engine_samples_the_softmax_of_transformers(checkpoint: CheckpointMaker) -> None:
    """The same through the whole engine: 4,000 requests for one token, in batches."""
    folder = checkpoint("llama-yarn")
    params = [SamplingParams(temperature=1.3, seed=seed, max_tokens=1) for seed in range(4_000)]
    with LLM(folder, threads=1) as llm:
        outputs = llm.generate([PROMPT] * len(params), params)
    counts = Counter(o.token_ids[0] for o in outputs)
    logits = truth_logits(folder, PROMPT)
    assert_follows(counts, reference(logits, params[0].resolved(DEFAULTS)).numpy())


def drawn(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    (token,) = draw_all(logits[None], Draws([0], [position], record_of(params)))
    return token


def truth_logits(folder: Path, prompt: list[int]) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor([prompt])).logits[0, -1].numpy()
    return logits


def assert_follows(counts: Counter[int], probabilities: np.ndarray) -> None:
    expected = probabilities * counts.total()
    assert set(counts) <= set(np.flatnonzero(expected).tolist())
    # Pearson's test needs at least 5 expected per cell; rarer outcomes share one cell.
    big = expected >= 5
    observed = [counts[int(i)] for i in np.flatnonzero(big)]
    wanted = expected[big].tolist()
    if expected[~big].sum() >= 5:
        observed.append(sum(counts[int(i)] for i in np.flatnonzero(~big)))
        wanted.append(expected[~big].sum())
    assert len(observed) > 5
    scale = sum(observed) / sum(wanted)
    assert chisquare(observed, np.array(wanted) * scale).pvalue > 1e-3


def reference(logits: np.ndarray, params: SamplingParams) -> torch.Tensor:
    warpers = LogitsProcessorList()
    if params.temperature:
        warpers.append(TemperatureLogitsWarper(params.temperature))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p and params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    scores = warpers(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(logits)[None].double())
    return torch.softmax(scores[0], -1)


@settings(max_examples=examples(150))
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.5),
)
def test_candidates_are_those_of_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 50).astype(np.float32)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=0
    ).resolved(DEFAULTS)
    ids, sums = candidates(logits, np.frombuffer(record_of(params), SAMPLING_RECORD)[0])
    # A mass that meets top_p, or a share that meets min_p, to the last bits may go either way.
    fewest, most = (
        reference(
            logits,
            msgspec.structs.replace(
                params, top_p=min(max(top_p + slack, 1e-9), 1.0), min_p=max(min_p - slack, 0.0)
            ),
        )
        for slack in (-1e-6, 1e-6)
    )
    assert set(np.flatnonzero(fewest)) <= set(ids) <= set(np.flatnonzero(most))
    every = torch.softmax(torch.from_numpy(logits[ids]).double() / temperature, -1).numpy()
    assert np.diff(sums, prepend=0) / sums[-1] == pytest.approx(every, abs=1e-6)


def test_repetition_penalty_is_that_of_transformers(checkpoint: CheckpointMaker) -> None:
    prompt = random_ids(3, 30)
    logits = np.random.default_rng(0).normal(0, 3, VOCAB_SIZE).astype(np.float32)
    params = SamplingParams(temperature=0.0, repetition_penalty=1.7, seed=0).resolved(DEFAULTS)
    adjuster = adjuster_of(params, prompt, [])
    processor = RepetitionPenaltyLogitsProcessor(1.7)
    expected = processor(torch.tensor([prompt]), torch.from_numpy(logits)[None])[0]
    adjuster.adjustment().apply(logits)
    assert np.allclose(logits, expected.numpy(), atol=1e-5)


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    params = SamplingParams(
        temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25, seed=0
    ).resolved(DEFAULTS)
    adjuster = adjuster_of(params, [1, 1, 1], [2])
    for token in (2, 3):
        adjuster.accept(token)
    row = np.zeros(5, dtype=np.float32)
    adjuster.adjustment().apply(row)
    assert row.tolist() == [0.0, 0.0, -1.0, -0.75, 0.0]


@pytest.mark.parametrize("window", [-1, 0, 1, 3, 4, 64])
@pytest.mark.parametrize("prior", [0, 2])
def test_penalties_see_the_last_tokens_of_their_window(window: int, prior: int) -> None:
    """The result equals a computation from scratch over the window, before and after it is full."""
    prompt, output = [1, 4, 4], [2, 3, 3, 5, 2]
    params = SamplingParams(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        penalty_window=window,
        seed=0,
    ).resolved(DEFAULTS)
    adjuster = adjuster_of(params, prompt, output[:prior])
    for known in range(prior, len(output) + 1):
        tokens = [*prompt, *output[:known]]
        seen = tokens if window < 0 else tokens[max(0, len(tokens) - window) :]
        counts = Counter(seen[len(seen) - min(known, len(seen)) :])
        expected = np.ones(7, dtype=np.float32)
        expected[list(set(seen))] /= 2.0
        for token, count in counts.items():
            expected[token] -= 0.5 + 0.25 * count
        row = np.ones(7, dtype=np.float32)
        adjuster.copy().adjustment().apply(row)
        assert row.tolist() == expected.tolist()
        if known < len(output):
            adjuster.copy().accept(6)  # a different continuation
            adjuster.accept(output[known])


def test_bias_min_tokens_and_stop_ids(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1) as llm:
        prompt = [5, 6, 7]
        forced = SamplingParams(temperature=0.0, max_tokens=3, logit_bias={42: 100.0})
        assert llm.generate([prompt], forced)[0].token_ids == [42, 42, 42]
        stopped = SamplingParams(
            temperature=0.0, max_tokens=9, logit_bias={42: 100.0}, stop_token_ids=(42,)
        )
        output = llm.generate([prompt], stopped)[0]
        assert (output.token_ids, output.finish_reason) == ([42], "stop")
        held = msgspec.structs.replace(stopped, min_tokens=4)
        output = llm.generate([prompt], held)[0]
        assert len(output.token_ids) == 5
        assert output.token_ids[-1] == 42
        assert 42 not in output.token_ids[:4]
        eos = msgspec.structs.replace(forced, logit_bias={0: 100.0}, max_tokens=5)
        assert llm.generate([prompt], eos)[0].token_ids == [0]
        ignored = msgspec.structs.replace(eos, ignore_eos=True)
        output = llm.generate([prompt], ignored)[0]
        assert (output.token_ids, output.finish_reason) == ([0] * 5, "length")


def test_logprobs_are_those_of_the_score(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("qwen2"), threads=1) as llm:
        prompt = random_ids(2, 20)
        output = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=8, logprobs=3))[
            0
        ]
        assert output.logprobs is not None
        scores = llm.score([prompt + output.token_ids])[0][len(prompt) - 1 :]
        assert [entry.logprob for entry in output.logprobs] == scores
        for entry, token in zip(output.logprobs, output.token_ids, strict=True):
            assert len(entry.top) == 3
            assert entry.top[0] == (token, entry.logprob)


def test_logprobs_are_those_before_bias_and_penalties(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1) as llm:
        prompt = random_ids(2, 20)
        params = SamplingParams(
            temperature=0.0, max_tokens=4, logprobs=0, logit_bias={42: 50.0}, presence_penalty=1.0
        )
        output = llm.generate([prompt], params)[0]
        assert output.token_ids == [42] * 4
        assert output.logprobs is not None
        scores = llm.score([prompt + output.token_ids])[0][len(prompt) - 1 :]
        assert [entry.logprob for entry in output.logprobs] == scores


def test_logprob_tops_are_sorted_and_complete() -> None:
    row = np.array([0.0, 2.0, 1.0, 2.0], dtype=np.float32)
    entry = token_logprob(row, 0, 4)
    assert [token for token, _ in entry.top] == [1, 3, 2, 0]
    assert math.fsum(math.exp(logprob) for _, logprob in entry.top) == pytest.approx(1.0)


def test_noise_is_uniform_and_a_function_of_seed_and_position() -> None:
    values = [noise(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(values)) == len(values)
    histogram, _ = np.histogram(values, bins=20, range=(0.0, 2.0**64))
    assert chisquare(histogram).pvalue > 1e-3
    assert noise(5, 7) == noise(5, 7)
    assert min(values) >= 0
    assert max(values) < 2**64


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 2**80),
        ("max_tokens", 2**80),
        ("min_tokens", 2**80),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -math.inf),
        ("n", 0),
        ("n", 10**9),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("logprobs", 10**6),
        ("seed", 2**64),
        ("penalty_window", -2),
        ("penalty_window", 2**31),
        ("logit_bias", dict.fromkeys(range(10**5), 1.0)),
        ("logit_bias", {3: math.nan}),
        ("stop", ("",)),
        ("stop", ("x",) * 10_000),
        ("stop", ("x" * 2**20,)),
        ("stop_token_ids", (-1,)),
    ],
)
def test_parameters_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field


@pytest.mark.parametrize("temperature", [1e-310, 1e-12, 1e-3])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    logits = np.random.default_rng(1).normal(0, 3, 50).astype(np.float32)
    params = SamplingParams(temperature=temperature, min_p=0.1, top_p=0.9, seed=3).resolved(
        DEFAULTS
    )
    assert drawn(logits, params, 1) == int(logits.argmax())


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"temperature": 1.0, "min_p": 0.1}])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_leave_no_choice(changes: dict[str, float], bad: float) -> None:
    params = SamplingParams(seed=0, **changes).resolved(DEFAULTS)  # type: ignore[arg-type]
    logits = np.zeros(9, dtype=np.float32)
    logits[4] = bad
    assert drawn(logits, params, 1) == NO_TOKEN
    nothing = np.zeros(9, dtype=np.float32)
    held = msgspec.structs.replace(params, min_tokens=1)
    adjuster_of(held, [1], [], range(9)).adjustment().apply(nothing)
    assert drawn(nothing, params, 1) == NO_TOKEN


def test_spellings_and_types_of_parameters() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[3]).stop_token_ids == (3,)  # type: ignore[arg-type]
    assert SamplingParams(temperature=1).temperature == 1
    for field, value in (
        ("max_tokens", 2.5),
        ("temperature", "1"),
        ("n", True),
        ("seed", 1.5),
        ("logit_bias", {"5": 1.0}),
        ("ignore_eos", 1),
        ("stop", (5,)),
        ("stop_token_ids", (1.5,)),
    ):
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        assert caught.value.param == field
