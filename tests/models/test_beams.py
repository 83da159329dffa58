"""Beam search against transformers: the best text and its score, on both kinds of model."""

import itertools
import uuid
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams
from galley.engine.tasks.beam_search import BeamSearch
from galley.errors import ContextExceeded, RequestError
from galley.llm.local import LocalEngine
from galley.ops.draws import draw_all
from galley.ops.sampling import RowCandidates, SamplingBatch, sample
from galley.service.requests import expand
from galley.settings.engine import EngineSettings, ExecutorName, KVType
from galley.types import EngineRequest, Output
from galley.types.audio import SpeechRules
from tests.checkpoints import VOCAB_SIZE, WHISPER_VARIANTS
from tests.conftest import CheckpointMaker
from tests.engines import native
from tests.models.whisper import (
    PROMPT,
    RULED,
    RULES,
    answers,
    ask,
    generated,
    random_features,
    tokens_of,
    truth,
)
from tests.thorough import each_pair

STOPS = (0, 7, 19, 77, 200, 201, 202, 203)
"""Enough stops that hypotheses end at different lengths."""

PARAMS = SamplingParams(
    temperature=0.0, max_tokens=25, num_beams=5, ignore_eos=True, stop_token_ids=STOPS
)


EXECUTORS: tuple[ExecutorName, ...] = ("reference", "cpu")


def engine_of(folder: Path, **changes: Any) -> LocalEngine:
    options = {"executor": "cpu", "threads": 1, "kv_cache_tokens": 2048, **changes}
    return LocalEngine(EngineSettings(model=str(folder), **options))


def requests_for(
    engine: LocalEngine, prompts: list[list[int]], params: SamplingParams
) -> list[EngineRequest]:
    return [
        request
        for ids in prompts
        for request in expand(ids, params, engine.info, request_id=uuid.uuid4().hex)
    ]


def random_prompts(*lengths: int) -> list[list[int]]:
    return [np.random.default_rng(n).integers(3, VOCAB_SIZE, n).tolist() for n in lengths]


def best_of(outputs: list[Output], length_penalty: float) -> tuple[list[int], float]:
    """Return the text and its score, as in transformers' ``sequences_scores``."""
    (output,) = outputs
    assert output.generated.scores is not None
    assert len(output.generated.scores) == len(output.tokens)
    return output.tokens, sum(output.generated.scores) / len(output.tokens) ** length_penalty


@pytest.mark.parametrize(
    ("executor", "length_penalty", "beams"), each_pair(EXECUTORS, (1.0, 0.0, 2.0), (2, 5, 10))
)
def test_text_and_score_are_those_of_transformers(
    beams: int, length_penalty: float, executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint("llama")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    params = msgspec.structs.replace(PARAMS, num_beams=beams, length_penalty=length_penalty)
    prompts = random_prompts(1, 7, 15, 16, 40)
    with engine_of(folder, executor=executor) as engine:
        got = answers(engine, requests_for(engine, prompts, params))
        assert engine.engine.stats.kv_used_blocks == 0
        native(engine.engine).check_blocks()
    for ids, outputs in zip(prompts, got, strict=True):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            num_beams=beams,
            length_penalty=length_penalty,
            do_sample=False,
            max_new_tokens=25,
            eos_token_id=list(STOPS),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        tokens, score = best_of(outputs, length_penalty)
        assert tokens == expected.sequences[0, len(ids) :].tolist()
        assert score == pytest.approx(expected.sequences_scores.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("variant", "timestamps", "executor"),
    each_pair(tuple(WHISPER_VARIANTS), (False, True), EXECUTORS),
)
def test_five_beams_of_whisper_are_those_of_transformers(
    variant: str, timestamps: bool, executor: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    model = truth(folder)
    prompt = PROMPT[: 3 if timestamps else 4]
    times = RULES.timestamps if timestamps else None
    rules = msgspec.structs.replace(RULES, timestamps=times)
    params = msgspec.structs.replace(RULED, num_beams=5)
    longest, mels = 2 * model.config.max_source_positions, model.config.num_mel_bins
    windows = [random_features(seed, mels, longest) for seed in range(4)]
    with engine_of(folder, executor=executor) as engine:
        requests = [r for window in windows for r in ask(engine, window, params, prompt, rules)]
        got = answers(engine, requests)
        assert engine.engine.stats.encoder_rows == len(windows) * longest // 2
    for window, outputs in zip(windows, got, strict=True):
        expected = generated(model, window, prompt, timestamps, num_beams=5)
        tokens, score = best_of(outputs, 1.0)
        assert tokens == expected.sequences[0].tolist()[len(prompt) :]
        assert score == pytest.approx(expected.sequences_scores.item(), rel=1e-4)
        assert outputs[0].generated.no_speech_prob is not None
        timing = outputs[0].timing
        assert timing is not None
        assert 0 < timing.first_token < timing.total


@pytest.mark.parametrize("kv_dtype", ["float32", "int8", "int4"])
def test_nothing_depends_on_the_batch_or_on_preemption(
    kv_dtype: KVType, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint("llama")
    endless = msgspec.structs.replace(PARAMS, stop_token_ids=())
    plain = msgspec.structs.replace(endless, num_beams=1, scores=True)
    cases = [(ids, endless) for ids in random_prompts(5, 20, 33, 38)]
    cases += [(ids, plain) for ids in random_prompts(9, 18)]
    with engine_of(folder, kv_dtype=kv_dtype) as engine:
        alone = [answers(engine, requests_for(engine, [ids], p))[0] for ids, p in cases]
    for budget, tight in itertools.product((24, 256), (False, True)):
        with engine_of(
            folder,
            kv_dtype=kv_dtype,
            max_batch_tokens=budget,
            max_running=24,
            # Room for the widest request alone: five hypotheses of up to 63 tokens.
            kv_cache_tokens=16 * 4 * 5 if tight else 4096,
        ) as engine:
            together = answers(
                engine, [r for ids, p in cases for r in requests_for(engine, [ids], p)]
            )
            assert (engine.engine.stats.preemptions > 0) == tight
            native(engine.engine).check_blocks()
            assert engine.engine.stats.kv_used_blocks == 0
        for one, other in zip(alone, together, strict=True):
            assert tokens_of(one) == tokens_of(other)
            # Accepted draft tokens bring several tokens in one Output.
            scores, others = (
                [s for o in outputs for s in o.generated.scores or ()] for outputs in (one, other)
            )
            assert scores == others


def test_more_beams_than_seats_run_alone(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    prompts = random_prompts(4, 6)
    with engine_of(folder) as engine:
        expected = [o[0].tokens for o in answers(engine, requests_for(engine, prompts, PARAMS))]
    with engine_of(folder, max_batch_tokens=4, max_running=3) as engine:
        got = [o[0].tokens for o in answers(engine, requests_for(engine, prompts, PARAMS))]
    assert got == expected


def test_cancelling_a_search_frees_all_its_blocks(checkpoint: CheckpointMaker) -> None:
    with engine_of(checkpoint("llama"), prefix_cache=False) as engine:
        search = requests_for(engine, random_prompts(20), PARAMS)
        short = requests_for(
            engine, random_prompts(4), SamplingParams(temperature=0.0, max_tokens=6)
        )
        run = engine.run([*search, *short])
        while next(run).finish_reason is None:
            pass
        assert engine.engine.stats.kv_used_blocks > 2
        run.close()
        assert engine.engine.stats.kv_used_blocks == 0
        native(engine.engine).check_blocks()


def test_logits_that_leave_nothing_end_the_search() -> None:
    rules = SpeechRules(allowed_tokens=(3, 4), begin_suppress_tokens=(3, 4))
    row = np.zeros((1, VOCAB_SIZE), dtype=np.float32)
    for search, logits in (
        (BeamSearch(PARAMS, STOPS, rules), row),
        (BeamSearch(PARAMS, STOPS), row + np.float32(np.nan)),
    ):
        [first] = search.running
        adjustment = first.rules.adjustment() if first.rules else None
        wanted = RowCandidates(0, search.candidates, adjustment)
        result = sample(logits, SamplingBatch(candidates=[wanted]), draw_all)
        assert result.candidates == [[]]
        assert search.advance(result.candidates) is None
        assert search.finished == []


def test_what_a_search_cannot_honor_is_refused(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), executor="reference", threads=1, kv_cache_tokens=160) as llm:
        for change in (
            {"temperature": 0.5},
            {"repetition_penalty": 1.2},
            {"presence_penalty": 0.1},
            {"frequency_penalty": 0.1},
            {"logit_bias": {3: 1.0}},
            {"min_tokens": 2},
            {"n": 2},
            {"logprobs": 1},
            {"prompt_logprobs": 1},
        ):
            (name,) = change
            with pytest.raises(RequestError, match="beam search") as error:
                llm.generate([[1, 2]], msgspec.structs.replace(PARAMS, **change))
            assert error.value.param == name
        with pytest.raises(RequestError, match="num_beams"):
            SamplingParams(num_beams=11)
        # Ten blocks: five hypotheses have two each, if they share nothing.
        llm.generate([[1, 2]], msgspec.structs.replace(PARAMS, max_tokens=30))
        with pytest.raises(ContextExceeded, match="32 tokens"):
            llm.generate([[1, 2]], msgspec.structs.replace(PARAMS, max_tokens=31))
