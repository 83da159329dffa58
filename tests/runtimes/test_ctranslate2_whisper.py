"""Whisper by CTranslate2 in the test's own process: transcripts as alone, and what it does not do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley import QualityRules, TranscribeOptions, Transcriber
from galley.errors import RequestError
from galley.runtimes.text_engine import TextEngine
from galley.service.speech_requests import align_request, transcribe_requests
from galley.speech.features import encoder_input
from galley.types import MAX_COUNT, SamplingParams, Transcribe
from galley.types.audio import NO_RULES, SpeechRules, TimestampRules
from tests import real
from tests.runtimes.ctranslate2_folders import engine_for, make_whisper, whisper_alone
from tests.runtimes.language_models import run, tokens_of
from tests.speech import tiny

pytest.importorskip("ctranslate2", reason="extra ctranslate2")
pytestmark = pytest.mark.xdist_group("ctranslate2")

FRAMES = 100 * tiny.INPUT_SECONDS
PROMPT = [tiny.token_id(name) for name in ("<|startoftranscript|>", "<|de|>", "<|transcribe|>")]
RULES = SpeechRules(
    timestamps=TimestampRules(
        begin=tiny.token_id("<|0.00|>"), text_end=tiny.token_id("<|endoftext|>"), max_initial=50
    ),
    no_speech=(0, tiny.token_id("<|nospeech|>")),
)
GREEDY = SamplingParams(temperature=0, max_tokens=20, scores=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whisper(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def engine(path: Path) -> TextEngine[Transcribe]:
    return engine_for(path, max_model_len=None)


def features(seed: int, frames: int = FRAMES) -> Any:
    return np.random.default_rng(seed).normal(0, 0.5, (frames, tiny.MELS)).astype(np.float32)


def transcribe(
    engine: TextEngine[Transcribe],
    audios: list[Any],
    params: SamplingParams = GREEDY,
    rules: SpeechRules = RULES,
    prompt: list[int] = PROMPT,
) -> list[list[Any]]:
    """Return the outputs for each audio, all of them in the engine at a time."""
    for number, audio in enumerate(audios):
        [request] = transcribe_requests(
            prompt,
            params,
            engine.info,
            request_id=str(number),
            encoder_input=encoder_input(audio),
            rules=rules,
        )
        engine.add(request)
    outputs = run(engine)
    return [outputs[f"{number}-0"] for number in range(len(audios))]


@pytest.mark.parametrize("beams", [1, 3])
def test_transcripts_of_a_batch_are_those_of_the_library(
    engine: TextEngine[Transcribe], path: Path, beams: int
) -> None:
    """One is shorter, so it is in another batch."""
    audios = [features(seed) for seed in range(31)] + [features(31, FRAMES // 2)]
    alone = whisper_alone(path)
    params = SamplingParams(temperature=0, max_tokens=20, scores=True, num_beams=beams)
    before = engine.stats
    for audio, outputs in zip(audios, transcribe(engine, audios, params), strict=True):
        [output] = outputs
        expected = alone(
            audio,
            PROMPT,
            beam_size=beams,
            max_length=40,
            return_no_speech_prob=True,
            suppress_tokens=[],
        )
        [ids], [score] = expected.sequences_ids, expected.scores
        ended = [tiny.token_id("<|endoftext|>")] if output.finish_reason == "stop" else []
        assert output.tokens == ids + ended
        assert (len(ids) < 20) == bool(ended)
        assert sum(output.generated.scores) == pytest.approx(score * max(1, len(ids)), abs=1e-4)
        assert len(output.generated.scores) == len(output.tokens)
        assert output.generated.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-5)
    assert engine.stats.prefill_tokens > before.prefill_tokens + 31 * FRAMES // 2
    assert engine.stats.running == 0


def test_a_prompt_longer_than_the_text_leaves_it_its_length(
    engine: TextEngine[Transcribe], path: Path
) -> None:
    """The library's limit is of prompt and text together."""
    earlier = [tiny.token_id("<|startofprev|>"), *range(5, 35)]
    params = SamplingParams(temperature=0, max_tokens=7, scores=True)
    rules = SpeechRules(timestamps=RULES.timestamps)
    [[output]] = transcribe(engine, [features(1)], params, rules, [*earlier, *PROMPT])
    alone = whisper_alone(path)
    whole = alone(features(1), [*earlier, *PROMPT], beam_size=1, max_length=64, suppress_tokens=[])
    assert output.tokens == whole.sequences_ids[0][:7]
    assert output.finish_reason == "length"
    assert output.generated.no_speech_prob is None


def test_a_language_that_the_library_does_not_detect_has_to_be_named(
    engine: TextEngine[Transcribe],
) -> None:
    """It detects languages only with a vocabulary like that of Whisper's own models."""
    speech = engine.info.speech
    assert speech is not None
    params = SamplingParams(temperature=0, max_tokens=1)
    rules = SpeechRules(allowed_tokens=tuple(speech.languages.values()))
    [[output]] = transcribe(engine, [features(1)], params, rules, PROMPT[:1])
    assert output.finish_reason == "error"
    assert output.refused
    assert "set language" in str(output.error)


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which the library detects languages, as of Whisper's own: they have an empty token."""
    path = make_whisper(tmp_path_factory.mktemp("languages") / "tiny")
    file = path / "vocabulary.json"
    tokens = json.loads(file.read_text())
    tokens[tiny.TEXT_TOKENS - 1] = ""
    file.write_text(json.dumps(tokens))
    return path


def test_languages_are_those_that_transformers_finds(multilingual: Path) -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    engine = engine_for(multilingual, max_model_len=None)
    speech = engine.info.speech
    assert speech is not None
    languages = sorted(speech.languages.values())
    assert languages == [tiny.token_id(f"<|{name}|>") for name in tiny.LANGUAGES]
    original = WhisperForConditionalGeneration.from_pretrained(
        multilingual.with_name(f"{multilingual.name}-checkpoint")
    )
    audios = [features(seed) for seed in range(8)]
    with torch.inference_mode():
        logits = original(
            input_features=torch.from_numpy(np.stack([audio.T for audio in audios])),
            decoder_input_ids=torch.tensor([PROMPT[:1]] * len(audios)),
        ).logits[:, 0]
    params = SamplingParams(temperature=0, max_tokens=1, scores=True)
    heard = set[int]()
    for allowed in (languages, languages[:2]):
        rules = SpeechRules(allowed_tokens=tuple(allowed))
        # Shares are of all languages, whichever are allowed.
        shares = logits[:, languages].softmax(-1)[:, : len(allowed)]
        found = [output for [output] in transcribe(engine, audios, params, rules, PROMPT[:1])]
        assert [one.tokens for one in found] == [[allowed[i]] for i in shares.argmax(-1)]
        heard.update(token for one in found for token in one.tokens)
        np.testing.assert_allclose(
            [one.generated.scores for one in found], shares.amax(-1, keepdim=True).log(), atol=1e-4
        )
    assert heard == set(languages)


def test_a_transcript_names_the_language_that_both_engines_find(multilingual: Path) -> None:
    audio = np.random.default_rng(0).normal(0, 0.1, 2 * 16_000).astype(np.float32)
    options = TranscribeOptions(speech=None, rules=QualityRules(beam_size=1, temperatures=(0.0,)))
    found = []
    for engine in ("ctranslate2", "native"):
        with Transcriber(multilingual, engine=engine, threads=1) as transcriber:
            transcription = transcriber.transcribe(audio, options)
            assert list(transcription)
            found.append(transcription.info.language)
    assert found[0] == found[1]
    assert found[0] in tiny.LANGUAGES


def test_draws_above_temperature_0_differ(engine: TextEngine[Transcribe]) -> None:
    for top_k in (0, MAX_COUNT):
        hot = SamplingParams(temperature=5, max_tokens=20, top_k=top_k)
        texts = [tokens_of(one) for one in transcribe(engine, [features(1)] * 4, hot)]
        assert len(set(map(tuple, texts))) == 4


def test_a_waiting_transcript_can_be_aborted(engine: TextEngine[Transcribe]) -> None:
    expected = transcribe(engine, [features(seed) for seed in range(4)])
    requests = [
        transcribe_requests(
            PROMPT,
            GREEDY,
            engine.info,
            request_id=str(seed),
            encoder_input=encoder_input(features(seed)),
            rules=RULES,
        )[0]
        for seed in range(4)
    ]
    for request in requests:
        engine.add(request)
    engine.abort(["0-0", "2-0"])
    outputs = run(engine)
    assert sorted(outputs) == ["1-0", "3-0"]
    for number in (1, 3):
        assert tokens_of(outputs[f"{number}-0"]) == tokens_of(expected[number])
    for request in requests:
        engine.add(request)
    while engine._runtime._waiting:  # type: ignore[attr-defined]
        engine.step()
    engine.abort([request.id for request in requests])
    assert not engine.has_work
    assert not engine.step()


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (SpeechRules(begin_suppress_tokens=(3,)), "suppresses the first tokens"),
        (SpeechRules(allowed_tokens=(3,)), "does not detect the language"),
        (SpeechRules(no_speech=(1, 3)), "reports the probability of no speech"),
    ],
)
def test_rules_that_it_does_not_have_are_refused(
    engine: TextEngine[Transcribe], rules: SpeechRules, says: str
) -> None:
    [[output]] = transcribe(engine, [features(1)], GREEDY, rules)
    assert output.finish_reason == "error"
    assert output.refused
    assert f"engine ctranslate2 {says}" in str(output.error)


def test_what_it_does_not_do_is_refused(engine: TextEngine[Transcribe]) -> None:
    for params in (SamplingParams(seed=1), SamplingParams(logprobs=1), SamplingParams(min_p=0.5)):
        with pytest.raises(RequestError, match="engine ctranslate2 does not support"):
            transcribe(engine, [features(1)], params, NO_RULES)
    with pytest.raises(RequestError, match="cannot align"):
        align_request(PROMPT, engine.info, request_id="a", encoder_input=encoder_input(features(1)))


def test_a_real_recording_is_transcribed_as_by_the_library() -> None:
    """Greedy, with the same prompt and features: the same tokens; and the words that were said."""
    jfk, folder = real.recording("jfk.flac"), real.whisper()
    rules = QualityRules(beam_size=1, temperatures=(0.0,))
    options = TranscribeOptions(speech=None, rules=rules)
    with Transcriber(folder, engine="ctranslate2", threads=1) as transcriber:
        segments = list(transcriber.transcribe(jfk, options))
        with pytest.raises(RequestError, match="engine ctranslate2 does not report the attention"):
            transcriber.transcribe(jfk, TranscribeOptions(word_timestamps=True))
    from galley.speech.features import LogMel

    alone = whisper_alone(folder)(LogMel()(jfk), [50257], beam_size=1)
    text = [token for segment in segments for token in segment.tokens]
    assert text == [token for token in alone.sequences_ids[0] if token < 50257]
    said = " ".join(segment.text for segment in segments)
    assert real.words(said) == real.words(real.JFK)
