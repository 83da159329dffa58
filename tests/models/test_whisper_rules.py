"""Whisper's decoding rules against transformers: suppressed tokens, timestamps, scores, language."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from galley import SamplingParams
from galley.engine.token_rules import TokenRules
from galley.llm.local import LocalEngine
from galley.types.audio import SpeechRules, TimestampRules
from tests.checkpoints import (
    EOS_TEXT,
    VOCAB_SIZE,
    WHISPER_GENERATION,
    WHISPER_VARIANTS,
)
from tests.conftest import CheckpointMaker
from tests.models.whisper import (
    NO_SPEECH,
    NO_TIMESTAMPS,
    PROMPT,
    RULED,
    RULES,
    START,
    answers,
    ask,
    encoded,
    generated,
    random_features,
    speech_info,
    tokens_of,
    truth,
)
from tests.thorough import examples


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_generate_of_transformers_gives_the_same_tokens(
    variant: str,
    timestamps: bool,
    checkpoint: CheckpointMaker,
    speech: Callable[..., LocalEngine],
) -> None:
    """The scores and the no-speech probability are the same, too."""
    model, engine = truth(checkpoint(variant)), speech(variant)
    prompt = PROMPT[: 3 if timestamps else 4]
    rules = RULES if timestamps else msgspec.structs.replace(RULES, timestamps=None)
    for seed in range(4):
        longest = 2 * model.config.max_source_positions
        features = random_features(seed, model.config.num_mel_bins, longest)
        expected = generated(model, features, prompt, timestamps)
        outputs = answers(engine, ask(engine, features, RULED, prompt, rules))[0]
        tokens = tokens_of(outputs)
        assert tokens == expected.sequences[0].tolist()[len(prompt) :]
        scores = [score for output in outputs for score in output.generated.scores or []]
        truths = [
            row[0].log_softmax(-1)[token].item()
            for token, row in zip(tokens, expected.scores, strict=True)
        ]
        assert scores == pytest.approx(truths, abs=1e-4)
        with torch.inference_mode():
            states = encoded(model, features)
            first = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([[START]]))
        no_speech = first.logits[0, 0].softmax(-1)[NO_SPEECH].item()
        assert outputs[0].generated.no_speech_prob == pytest.approx(no_speech, rel=1e-3)
        assert all(output.generated.no_speech_prob is None for output in outputs[1:])


@settings(max_examples=examples(300))
@given(
    output=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
    peak=st.integers(0, VOCAB_SIZE - 1),
    sharpness=st.sampled_from([0.1, 1.0, 10.0]),
    max_initial=st.sampled_from([None, 0, 20]),
)
def test_rules_leave_what_processors_of_transformers_leave(
    output: list[int], peak: int, sharpness: float, max_initial: int | None
) -> None:
    """The history is arbitrary, whether or not the rules would have allowed it."""
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
    own = msgspec.structs.replace(RULES, timestamps=rules)
    got = row.copy()
    resumed = TokenRules(own, output)
    resumed.adjustment().apply(got)
    assert np.array_equal(got, expected[0].numpy())
    followed = TokenRules(own, [])
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
    assert before.generated.logprobs
    raw = dict(before.generated.logprobs[0].top)
    # At temperature 1, whatever temperature the token was drawn at.
    assert before.generated.scores == [before.generated.logprobs[0].logprob]
    allowed = SpeechRules(allowed_tokens=tuple(raw))
    (output,) = answers(engine, ask(engine, features, params, rules=allowed))[0]
    assert output.generated.scores
    assert output.generated.logprobs
    expected = raw[output.tokens[0]] - math.log(sum(map(math.exp, raw.values())))
    assert output.generated.scores[0] == pytest.approx(expected, abs=1e-6)
    assert output.generated.logprobs[0].logprob == raw[output.tokens[0]]


def test_language_detection_is_a_request_of_one_token(
    checkpoint: CheckpointMaker, speech: Callable[..., LocalEngine]
) -> None:
    model, engine = truth(checkpoint("whisper")), speech()
    info = speech_info(engine)
    languages = tuple(info.languages.values())
    for seed in range(5):
        features = random_features(seed, 80, 150)
        params = SamplingParams(temperature=0.0, max_tokens=1, scores=True)
        rules = SpeechRules(allowed_tokens=languages)
        (output,) = answers(engine, ask(engine, features, params, [info.start_token], rules))[0]
        expected = model.detect_language(torch.from_numpy(features.T.copy())[None])
        assert output.tokens == expected.tolist()


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
