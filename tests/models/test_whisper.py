"""Whisper against transformers in float32: the encoder, logits, greedy text, the rules of decoding."""

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from galley import LLM, SamplingParams
from galley.audio import EncoderInput, SpeechInfo, TimestampRules
from galley.config import DType, EngineSettings, ExecutorName, Quantize
from galley.engine.load import read_model
from galley.engine.token_rules import TokenRules
from galley.errors import CheckpointError, EngineFailed, RequestError
from galley.formats.checkpoint import Checkpoint
from galley.graph.program import Op
from galley.local import LocalEngine
from galley.models.registry import build_program
from galley.models.speech import read_speech, with_aligner
from galley.ops.executor import (
    Batch,
    CrossContext,
    EncoderBatch,
    Executor,
    align,
    encode,
    executor_factory,
    forward,
)
from galley.ops.reference import ReferenceExecutor
from galley.ops.reference_ops import Step
from galley.ops.tiles import Tiles
from galley.service.requests import expand
from galley.types import blocks_for
from tests.checkpoints import (
    ALIGNMENT_HEADS,
    EOS_TEXT,
    VOCAB_SIZE,
    WHISPER_GENERATION,
    WHISPER_VARIANTS,
)
from tests.conftest import CheckpointMaker
from tests.engines import native
from tests.models.whisper import (
    GREEDY,
    NO_SPEECH,
    NO_TIMESTAMPS,
    PROMPT,
    RULES,
    START,
    Features,
    answers,
    ask,
    generated,
    random_features,
    tokens_of,
    truth,
    window_of,
)

EXECUTORS: tuple[ExecutorName, ...] = ("reference", "cpu")
WINDOW_BLOCKS = 20


def encoded(model: Any, features: Features) -> torch.Tensor:
    """What transformers' encoder makes of a window that may be shorter than the model's."""
    encoder = model.model.encoder
    positions = encoder.embed_positions.weight[: -(-len(features) // 2)]
    with torch.inference_mode():
        x = torch.from_numpy(features.T.copy())[None]
        x = torch.nn.functional.gelu(encoder.conv1(x))
        x = torch.nn.functional.gelu(encoder.conv2(x)).permute(0, 2, 1) + positions
        for layer in encoder.layers:
            x = layer(x, None)
        result: torch.Tensor = encoder.layer_norm(x)
    return result


def executor_of(
    folder: Path,
    dtype: DType = "float32",
    name: ExecutorName = "reference",
    quantize: Quantize = "auto",
) -> Executor:
    settings = EngineSettings(
        model=str(folder), dtype=dtype, quantize=quantize, executor=name, threads=1
    )
    model = read_model(settings, folder)
    executor = executor_factory(name)(model.program, model.weights, model.options)
    executor.allocate_kv(256)
    return executor


def run(
    executor: Executor,
    windows: list[Features],
    prompts: list[list[int]],
    *,
    first_block: int = 0,
    call: Callable[[Batch], npt.NDArray[np.float32]] | None = None,
) -> npt.NDArray[np.float32]:
    """All logits of all prompts, prompt i over window i, all in one batch; or what ``call`` gives."""
    rows = [-(-len(window) // 2) for window in windows]
    crosses = tuple(
        np.arange(first_block + i * WINDOW_BLOCKS, first_block + i * WINDOW_BLOCKS + blocks_for(n))
        for i, n in enumerate(rows)
    )
    encode(
        executor, EncoderBatch(np.concatenate(windows), np.cumsum([0, *map(len, windows)]), crosses)
    )
    starts = np.cumsum([0, *map(len, prompts)])
    tables = (
        np.arange(200 + 8 * i, 200 + 8 * i + blocks_for(len(p))) for i, p in enumerate(prompts)
    )
    return (call or partial(forward, executor))(
        Batch(
            tokens=np.concatenate(prompts),
            positions=np.concatenate([np.arange(len(p)) for p in prompts]),
            starts=starts,
            tables=tuple(tables),
            wanted=np.arange(starts[-1]),
            cross=CrossContext(crosses, np.array(rows)),
        )
    ).copy()


def random_ids(seed: int, length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()
    return ids


@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_encoder_states_agree(variant: str, checkpoint: CheckpointMaker) -> None:
    """The last layer norm's rows are the encoder's states."""
    folder = checkpoint(variant)
    settings = EngineSettings(model=str(folder), executor="reference", threads=1)
    model = read_model(settings, folder)
    assert model.program.encoder
    states: list[torch.Tensor] = []

    class Spy(ReferenceExecutor):
        def _layer_norm(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
            result = super()._layer_norm(op, step, inputs)
            states.append(step.layout.gather(result))
            return result

    spy = Spy(model.program, model.weights, model.options)
    spy.allocate_kv(40)
    frames = model.program.encoder.max_positions
    features = random_features(1, model.program.encoder.mels, frames)
    table = np.arange(blocks_for(frames // 2))
    encode(spy, EncoderBatch(features, np.array([0, frames]), (table,)))
    with torch.inference_mode():
        whole = torch.from_numpy(features.T.copy())[None]
        expected = truth(folder).model.encoder(whole).last_hidden_state[0]
    assert (states[-1] - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_logits_agree_for_windows_of_any_length(
    variant: str, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    model = truth(folder)
    executor = executor_of(folder, name=name)
    longest = 2 * model.config.max_source_positions
    for frames in (longest, longest - 1, 33, 2, 1):
        features = random_features(frames, model.config.num_mel_bins, frames)
        ids = random_ids(frames, 50)
        with torch.inference_mode():
            expected = model(
                encoder_outputs=(encoded(model, features),), decoder_input_ids=torch.tensor([ids])
            ).logits[0]
        got = run(executor, [features], [ids])
        assert np.abs(got - expected.numpy()).max() <= 1e-4 * expected.abs().max(), frames


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_a_window_has_the_same_bits_alone_and_in_any_batch(
    variant: str, dtype: DType, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    executor = executor_of(checkpoint(variant), dtype, name)
    mels = 128 if "128" in variant else 80
    windows = [random_features(i, mels, frames) for i, frames in enumerate((1, 31, 64, 97, 150))]
    prompts = [random_ids(i, 3 + 7 * i) for i in range(len(windows))]
    alone = [run(executor, [w], [p]) for w, p in zip(windows, prompts, strict=True)]
    for order in ((4, 3, 2, 1, 0), (2, 0, 4), (1, 3)):
        together = run(
            executor, [windows[i] for i in order], [prompts[i] for i in order], first_block=16
        )
        assert np.array_equal(together, np.concatenate([alone[i] for i in order])), order


@pytest.mark.parametrize(("dtype", "quantize"), [("bfloat16", "auto"), ("float32", "int8")])
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_rounded_weights_stay_near_float32(
    variant: str, dtype: DType, quantize: Quantize, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    window, prompt = random_features(3, 128 if "128" in variant else 80, 150), random_ids(3, 50)
    exact = run(executor_of(folder), [window], [prompt])
    rounded = run(executor_of(folder, dtype, quantize=quantize), [window], [prompt])
    error = np.abs(rounded - exact)
    assert 0 < error.mean() < 0.03 * np.abs(exact).max()


@pytest.fixture
def speech(checkpoint: CheckpointMaker) -> Iterator[Callable[..., LocalEngine]]:
    """Makes engines, which end with the test."""
    made: list[LocalEngine] = []

    def make(variant: str = "whisper", **changes: Any) -> LocalEngine:
        folder = checkpoint(variant)
        options = {"executor": "reference", "threads": 1, "kv_cache_tokens": 1024, **changes}
        made.append(LocalEngine(EngineSettings(model=str(folder), **options)))
        return made[-1]

    yield make
    for engine in made:
        assert engine.engine.stats.kv_used_blocks == 0
        native(engine.engine).check_blocks()
        engine.close()


def greedy(model: Any, features: Features, prompt: list[int], count: int) -> list[int]:
    """Plain, without Whisper's own generate and its rules."""
    states = encoded(model, features)
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            logits = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_greedy_tokens_agree_in_mixed_batches(
    variant: str, checkpoint: CheckpointMaker, speech: Callable[..., LocalEngine]
) -> None:
    """Every combination of step budget, prefix cache and forced preemption."""
    model = truth(checkpoint(variant))
    mels, longest = model.config.num_mel_bins, 2 * model.config.max_source_positions
    windows = [random_features(i, mels, frames) for i, frames in enumerate((longest, 90, 51, 51))]
    prompts = [PROMPT, [207, *range(20, 37), *PROMPT], PROMPT[:3], PROMPT]
    expected = [
        greedy(model, w, p, GREEDY.max_tokens or 0) for w, p in zip(windows, prompts, strict=True)
    ]
    # Room for the longest request alone, but not for all.
    tight_cache = 16 * (blocks_for(longest // 2) + 5)
    for budget, sharing, tight in itertools.product((8, 256), (True, False), (True, False)):
        engine = speech(
            variant,
            max_batch_tokens=budget,
            prefix_cache=sharing,
            kv_cache_tokens=tight_cache if tight else 1024,
        )
        requests = [
            request
            for window, prompt in zip(windows, prompts, strict=True)
            for request in ask(engine, window, GREEDY, prompt)
        ]
        outputs = answers(engine, requests)
        assert [tokens_of(o) for o in outputs] == expected, (budget, sharing, tight)


def test_preemption_encodes_again_and_changes_nothing(speech: Callable[..., LocalEngine]) -> None:
    windows = [random_features(i, 80, 150) for i in range(3)]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=80, ignore_eos=True, scores=True)
    roomy, tight = speech(), speech(kv_cache_tokens=16 * 14)
    alone = [answers(roomy, ask(roomy, window, params))[0] for window in windows]
    squeezed = answers(tight, [r for window in windows for r in ask(tight, window, params)])
    assert sum(timing.preemptions for o in squeezed if (timing := o[-1].timing)) > 0
    assert tight.engine.stats.encoder_rows > 3 * 75
    for one, other in zip(alone, squeezed, strict=True):
        assert tokens_of(one) == tokens_of(other)
        assert [o.scores for o in one] == [o.scores for o in other]


def test_the_same_audio_is_encoded_once(speech: Callable[..., LocalEngine]) -> None:
    engine = speech()
    features = random_features(0, 80, 150)
    choices = SamplingParams(temperature=1.0, seed=1, n=4, max_tokens=20, ignore_eos=True)
    answers(engine, ask(engine, features, choices))
    assert engine.engine.stats.encoder_rows == 75
    first = answers(engine, ask(engine, features, GREEDY))
    assert engine.engine.stats.encoder_rows == 75
    other = answers(engine, ask(engine, random_features(1, 80, 150), GREEDY))
    assert engine.engine.stats.encoder_rows == 150
    assert tokens_of(first[0]) != tokens_of(other[0])


def test_equal_prompts_over_other_audio_share_nothing(speech: Callable[..., LocalEngine]) -> None:
    prompt = [207, *range(20, 60), *PROMPT]
    engine, fresh = speech(), speech(prefix_cache=False)
    windows = [random_features(i, 80, 100) for i in range(2)]
    for window in windows:
        got = answers(engine, ask(engine, window, GREEDY, prompt))[0]
        assert got[0].cached_tokens == 0
        assert tokens_of(got) == tokens_of(answers(fresh, ask(fresh, window, GREEDY, prompt))[0])
    again = answers(engine, ask(engine, windows[0], GREEDY, prompt))[0]
    assert again[0].cached_tokens == 32


def test_cancelling_frees_the_window(speech: Callable[..., LocalEngine]) -> None:
    engine = speech(prefix_cache=False)
    run = engine.run(ask(engine, random_features(0, 80, 150), GREEDY))
    next(run)
    assert engine.engine.stats.kv_used_blocks >= 5
    run.add(ask(engine, random_features(1, 80, 150), GREEDY))
    next(run)
    run.close()
    assert engine.engine.stats.kv_used_blocks == 0
    assert list(run) == []


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_generate_of_transformers_gives_the_same_tokens(
    variant: str,
    timestamps: bool,
    checkpoint: CheckpointMaker,
    speech: Callable[..., LocalEngine],
) -> None:
    """And the same scores and probability of no speech."""
    model, engine = truth(checkpoint(variant)), speech(variant)
    prompt = PROMPT[: 3 if timestamps else 4]
    params = RULES if timestamps else msgspec.structs.replace(RULES, timestamps=None)
    for seed in range(4):
        longest = 2 * model.config.max_source_positions
        features = random_features(seed, model.config.num_mel_bins, longest)
        expected = generated(model, features, prompt, timestamps)
        outputs = answers(engine, ask(engine, features, params, prompt))[0]
        tokens = tokens_of(outputs)
        assert tokens == expected.sequences[0].tolist()[len(prompt) :]
        scores = [score for output in outputs for score in output.scores or []]
        truths = [
            row[0].log_softmax(-1)[token].item()
            for token, row in zip(tokens, expected.scores, strict=True)
        ]
        assert scores == pytest.approx(truths, abs=1e-4)
        with torch.inference_mode():
            states = encoded(model, features)
            first = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([[START]]))
        no_speech = first.logits[0, 0].softmax(-1)[NO_SPEECH].item()
        assert outputs[0].no_speech_prob == pytest.approx(no_speech, rel=1e-3)
        assert all(output.no_speech_prob is None for output in outputs[1:])


@settings(max_examples=300)
@given(
    output=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
    peak=st.integers(0, VOCAB_SIZE - 1),
    sharpness=st.sampled_from([0.1, 1.0, 10.0]),
    max_initial=st.sampled_from([None, 0, 20]),
)
def test_rules_leave_what_processors_of_transformers_leave(
    output: list[int], peak: int, sharpness: float, max_initial: int | None
) -> None:
    """For any history, whether or not the rules would have let it come about."""
    row = np.random.default_rng(peak).standard_normal(VOCAB_SIZE).astype(np.float32) * sharpness
    row[peak] += 5
    begin = len(PROMPT) - 1
    ids = torch.tensor([[*PROMPT[:begin], *output]])
    config = SimpleNamespace(
        eos_token_id=EOS_TEXT,
        bos_token_id=EOS_TEXT,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=max_initial,
    )
    expected = torch.from_numpy(row.copy())[None]
    for processor in (
        SuppressTokensAtBeginLogitsProcessor(RULES.begin_suppress_tokens, begin),
        SuppressTokensLogitsProcessor(RULES.suppress_tokens),
        WhisperTimeStampLogitsProcessor(config, begin),
    ):
        expected = processor(ids, expected)
    rules = TimestampRules(begin=NO_TIMESTAMPS + 1, text_end=EOS_TEXT, max_initial=max_initial)
    params = msgspec.structs.replace(RULES, timestamps=rules)
    got = row.copy()
    resumed = TokenRules(params, output)
    resumed.adjustment().apply(got)
    assert np.array_equal(got, expected[0].numpy())
    followed = TokenRules(params, [])
    for token in output:
        followed.accept(token)
    again = row.copy()
    followed.adjustment().apply(again)
    assert np.array_equal(again, got)


def test_scores_are_of_the_distribution_that_was_drawn_from(
    speech: Callable[..., LocalEngine],
) -> None:
    engine, features = speech(), random_features(0, 80, 150)
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=1, logprobs=3, scores=True)
    (before,) = answers(engine, ask(engine, features, params))[0]
    assert before.logprobs
    raw = dict(before.logprobs[0].top)
    # At temperature 1, whatever the token was drawn at.
    assert before.scores == [before.logprobs[0].logprob]
    allowed = msgspec.structs.replace(params, allowed_tokens=tuple(raw))
    (output,) = answers(engine, ask(engine, features, allowed))[0]
    assert output.scores
    assert output.logprobs
    expected = raw[output.tokens[0]] - math.log(sum(map(math.exp, raw.values())))
    assert output.scores[0] == pytest.approx(expected, abs=1e-6)
    assert output.logprobs[0].logprob == raw[output.tokens[0]]


def test_language_detection_is_a_request_of_one_token(
    checkpoint: CheckpointMaker, speech: Callable[..., LocalEngine]
) -> None:
    model, engine = truth(checkpoint("whisper")), speech()
    info = speech_info(engine)
    languages = tuple(info.languages.values())
    for seed in range(5):
        features = random_features(seed, 80, 150)
        params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_tokens=languages, scores=True
        )
        (output,) = answers(engine, ask(engine, features, params, [info.start_token]))[0]
        expected = model.detect_language(torch.from_numpy(features.T.copy())[None])
        assert output.tokens == expected.tolist()


def speech_info(engine: LocalEngine) -> SpeechInfo:
    assert engine.info.speech is not None
    return engine.info.speech


def test_the_checkpoint_says_how_to_decode(speech: Callable[..., LocalEngine]) -> None:
    info = speech_info(speech("whisper-odd-128"))
    assert (info.mels, info.max_frames, info.stride, info.max_rows) == (128, 602, 2, 301)
    assert info.languages == WHISPER_GENERATION["lang_to_id"]
    assert info.tasks == WHISPER_GENERATION["task_to_id"]
    assert (info.start_token, info.previous_token) == (START, 207)
    assert (info.no_speech_token, info.no_timestamps_token) == (NO_SPEECH, NO_TIMESTAMPS)
    assert (info.timestamp_begin, info.max_initial_timestamp) == (NO_TIMESTAMPS + 1, 20)
    assert info.suppress_tokens == RULES.suppress_tokens
    assert info.begin_suppress_tokens == RULES.begin_suppress_tokens
    assert info.alignment_heads == ((0, 1), (0, 3))


def test_without_named_heads_the_latter_half_of_the_decoder_aligns(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """As openai/whisper's ``set_alignment_heads`` is left alone; unless that is more than fits a frame."""
    folder = tmp_path / "whisper"
    shutil.copytree(checkpoint("whisper"), folder)

    def heads(named: list[list[int]] | None, **config: int) -> tuple[tuple[int, int], ...]:
        generation = {**WHISPER_GENERATION, "alignment_heads": named}
        (folder / "generation_config.json").write_text(json.dumps(generation))
        opened = Checkpoint.open(folder)
        changed = {**opened.config, **config}
        speech = read_speech(changed, opened.generation, build_program(changed))
        assert speech is not None
        return speech.alignment_heads

    assert heads(None) == tuple((1, head) for head in range(4))
    assert heads([]) == heads(None)
    assert heads(None, decoder_layers=5) == tuple(itertools.product((2, 3, 4), range(4)))
    assert heads(None, decoder_layers=41) == ()
    assert heads([[0, 1]], decoder_layers=41) == ((0, 1),)
    with pytest.raises(CheckpointError, match="names 81 heads"):
        heads([[0, 1]] * 81)
    config = Checkpoint.open(folder).config
    info = SpeechInfo(
        mels=80, max_frames=150, stride=2, start_token=START, alignment_heads=((0, 9),)
    )
    with pytest.raises(CheckpointError, match="head 9 of layer 0"):
        with_aligner(build_program(config), config, info)


def test_requests_are_for_the_right_kind_of_model(
    checkpoint: CheckpointMaker, speech: Callable[..., LocalEngine]
) -> None:
    engine = speech()
    good = random_features(0, 80, 150)
    for features, message in (
        (random_features(0, 128, 150), "128 values in a frame"),
        (random_features(0, 80, 151), "151 frames"),
    ):
        with pytest.raises(RequestError, match=message) as error:
            ask(engine, features, GREEDY)
        assert error.value.param == "window"
    with pytest.raises(RequestError, match="speech model"):
        expand(PROMPT, GREEDY, engine.info, request_id="r")
    with pytest.raises(RequestError, match="24 bytes"):
        EncoderInput(frames=2, mels=80, data=bytes(24))
    with pytest.raises(RequestError, match="index 4"):
        ask(engine, good, msgspec.structs.replace(RULES, no_speech=(4, NO_SPEECH)))
    with pytest.raises(RequestError, match="timestamps"):
        TimestampRules(begin=3, text_end=3)
    text = LLM(checkpoint("llama"), threads=1, executor="reference")
    with pytest.raises(RequestError, match="text model"):
        expand(PROMPT, GREEDY, text.info, request_id="r", encoder_input=window_of(good))
    asked = LLM(checkpoint("whisper"), threads=1, executor="reference")
    with pytest.raises(RequestError, match="speech model"):
        asked.generate([PROMPT], GREEDY)


def test_features_that_are_no_numbers_end_their_request_alone(
    speech: Callable[..., LocalEngine],
) -> None:
    engine = speech()
    good = random_features(0, 80, 150)
    expected = tokens_of(answers(engine, ask(engine, good, GREEDY))[0])
    for value in (np.nan, np.inf, -1e30):
        bad = good.copy()
        bad[7, 3] = value
        broken, fine = answers(engine, [*ask(engine, bad, GREEDY), *ask(engine, good, GREEDY)])
        assert [output.finish_reason for output in broken] == ["error"]
        assert "features" in (broken[0].error or "")
        assert tokens_of(fine) == expected
    run = engine.run(ask(engine, bad, GREEDY))
    run.close()
    assert not engine.engine.has_work


def test_a_cache_without_room_for_a_window_is_refused(checkpoint: CheckpointMaker) -> None:
    settings = EngineSettings(
        model=str(checkpoint("whisper")), executor="reference", kv_cache_tokens=80
    )
    with pytest.raises(EngineFailed, match="one window of audio"):
        LocalEngine(settings)


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_alignment_heads_look_where_those_of_transformers_do(
    variant: str, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    model, executor = truth(folder), executor_of(folder, name=name)
    mels, longest = model.config.num_mel_bins, 2 * model.config.max_source_positions
    windows = [random_features(i, mels, frames) for i, frames in enumerate((longest, 77))]
    prompts = [random_ids(1, 20), random_ids(2, 33)]
    got = run(executor, windows, prompts, call=partial(align, executor))
    heads = ALIGNMENT_HEADS[variant]
    assert got.shape == (53, len(heads), longest // 2)
    for window, ids, rows in zip(windows, prompts, np.split(got, [20]), strict=True):
        states = encoded(model, window)
        with torch.inference_mode():
            out = model(
                encoder_outputs=(states,),
                decoder_input_ids=torch.tensor([ids]),
                output_attentions=True,
            )
        heard = states.shape[1]
        for place, (layer, head) in enumerate(heads):
            expected = out.cross_attentions[layer][0, head].numpy()
            assert np.abs(rows[:, place, :heard] - expected).max() <= 1e-4
        assert not rows[:, :, heard:].any()


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_alignment_is_a_request_over_a_given_text(
    name: ExecutorName, checkpoint: CheckpointMaker, speech: Callable[..., LocalEngine]
) -> None:
    """In chunks, beside other requests, after a preemption: the same weights as in one call."""
    executor = executor_of(checkpoint("whisper"), name=name)
    windows = [random_features(i, 80, 150 - 10 * i) for i in range(3)]
    texts = [[*PROMPT, *random_ids(i, 30 + i), EOS_TEXT] for i in range(3)]
    params = SamplingParams(max_tokens=0, alignment=True)
    for budget, tokens in ((256, 1024), (8, 1024), (16, 160)):
        engine = speech(
            max_batch_tokens=budget, kv_cache_tokens=tokens, max_running=8, executor=name
        )
        requests = [
            r for w, t in zip(windows, texts, strict=True) for r in ask(engine, w, params, t)
        ]
        requests += [r for w in windows for r in ask(engine, w, GREEDY)]
        outputs = answers(engine, requests)
        for window, text, (output,) in zip(windows, texts, outputs, strict=False):
            found = output.alignment
            assert found is not None
            assert (found.tokens, found.heads, found.rows) == (len(text), 3, len(window) // 2)
            got = np.frombuffer(found.data, "<f4").reshape(found.tokens, found.heads, found.rows)
            alone = run(executor, [window], [text], call=partial(align, executor))
            assert np.array_equal(got, alone[:, :, : found.rows])
        # What an aligner leaves in the cache is not all layers: nobody may share it.
        fresh = speech(prefix_cache=False, executor=name)
        again = [r for w, t in zip(windows, texts, strict=True) for r in ask(engine, w, GREEDY, t)]
        for request, answer in zip(again, answers(engine, again), strict=True):
            assert tokens_of(answer) == tokens_of(answers(fresh, [request])[0])


def test_alignments_that_cannot_be_are_refused(speech: Callable[..., LocalEngine]) -> None:
    engine, features = speech(), random_features(0, 80, 150)
    params = SamplingParams(max_tokens=0, alignment=True)
    for change, message in (
        ({"max_tokens": 3}, "max_tokens must be 0"),
        ({"no_speech": (0, NO_SPEECH)}, "no logits"),
    ):
        with pytest.raises(RequestError, match=message):
            ask(engine, features, msgspec.structs.replace(params, **change))
