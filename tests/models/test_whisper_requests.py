"""Requests to a Whisper engine: batches, preemption, the cache of encoded audio, what is refused."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from galley import LLM, SamplingParams
from galley.errors import EngineFailed, RequestError
from galley.llm.local import LocalEngine
from galley.service.requests import expand
from galley.service.speech_requests import transcribe_requests
from galley.settings.engine import EngineSettings
from galley.types import blocks_for
from galley.types.audio import EncoderInput, SpeechRules, TimestampRules
from tests.checkpoints import (
    VOCAB_SIZE,
    WHISPER_VARIANTS,
)
from tests.conftest import CheckpointMaker
from tests.models.whisper import (
    GREEDY,
    NO_SPEECH,
    PROMPT,
    answers,
    ask,
    greedy,
    random_features,
    tokens_of,
    truth,
    window_of,
)


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
        assert [o.generated.scores for o in one] == [o.generated.scores for o in other]


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


def test_cancelling_frees_the_encoded_audio(speech: Callable[..., LocalEngine]) -> None:
    engine = speech(prefix_cache=False)
    run = engine.run(ask(engine, random_features(0, 80, 150), GREEDY))
    next(run)
    assert engine.engine.stats.kv_used_blocks >= 5
    run.add(ask(engine, random_features(1, 80, 150), GREEDY))
    next(run)
    run.close()
    assert engine.engine.stats.kv_used_blocks == 0
    assert list(run) == []


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
        assert error.value.param == "encoder_input"
    with pytest.raises(RequestError, match="speech model"):
        expand(PROMPT, GREEDY, engine.info, request_id="r")
    with pytest.raises(RequestError, match="24 bytes"):
        EncoderInput(frames=2, mels=80, data=bytes(24))
    with pytest.raises(RequestError, match="index 4"):
        ask(engine, good, GREEDY, rules=SpeechRules(no_speech=(4, NO_SPEECH)))
    with pytest.raises(RequestError, match="suppress_tokens contains token id") as error:
        ask(engine, good, GREEDY, rules=SpeechRules(suppress_tokens=(VOCAB_SIZE,)))
    assert error.value.param == "suppress_tokens"
    with pytest.raises(RequestError, match="timestamps"):
        TimestampRules(begin=3, text_end=3)
    text = LLM(checkpoint("llama"), threads=1, executor="reference")
    with pytest.raises(RequestError, match="text model"):
        transcribe_requests(
            PROMPT, GREEDY, text.info, request_id="r", encoder_input=window_of(good)
        )
    llm = LLM(checkpoint("whisper"), threads=1, executor="reference")
    with pytest.raises(RequestError, match="speech model"):
        llm.generate([PROMPT], GREEDY)


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


def test_a_cache_without_room_for_an_encoder_input_is_refused(checkpoint: CheckpointMaker) -> None:
    settings = EngineSettings(
        model=str(checkpoint("whisper")), executor="reference", kv_cache_tokens=80
    )
    with pytest.raises(EngineFailed, match="no room for an encoder input"):
        LocalEngine(settings)
