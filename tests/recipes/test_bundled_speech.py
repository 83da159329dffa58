"""The bundled speech model: the same text under Galley and faster-whisper, with few wrong words."""

import functools
from collections.abc import Iterator

import faster_whisper
import faster_whisper.transcribe
import jiwer
import msgspec
import numpy as np
import pytest
from ctranslate2 import StorageView
from ctranslate2.converters import TransformersConverter

from galley import SamplingParams, Transcriber
from galley.demo.speech import SPEECH_MODEL_DIR
from galley.formats.source import BUNDLED_SPEECH
from galley.llm.local import LocalEngine
from galley.service.speech_requests import transcribe_requests
from galley.settings.engine import EngineSettings
from galley.speech.evaluate import plain_text
from galley.types.audio import EncoderInput, SpeechRules
from recipes.assistant.tokenizer import load_tokenizer, token_id
from recipes.speech import CALL_DIR, DATA_DIR, heldout
from recipes.speech.evaluate import TARGET
from recipes.speech.tokenizer import END, LANGUAGE, NO_TIMESTAMPS, START, TASK
from tests.thorough import long

RECORDINGS = [f"{name}.{ending}" for name, ending in heldout.FORMATS.items()]
FRAMES = 800
"""Frames of the model's window."""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faster_whisper.WhisperModel]:
    """faster-whisper on the converted checkpoint; its windows are 30 s unless set otherwise."""
    folder = tmp_path_factory.mktemp("converted") / "model"
    files = ["tokenizer.json", "preprocessor_config.json"]
    TransformersConverter(str(SPEECH_MODEL_DIR), copy_files=files).convert(str(folder))
    short = functools.partial(faster_whisper.transcribe.pad_or_trim, length=FRAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faster_whisper.transcribe, "pad_or_trim", short)
        yield faster_whisper.WhisperModel(
            str(folder), device="cpu", compute_type="float32", cpu_threads=1
        )


@pytest.fixture(scope="module")
def galley() -> Iterator[Transcriber]:
    with Transcriber(dtype="float32", threads=1) as transcriber:
        yield transcriber


@pytest.mark.parametrize(
    ("name", "beams"),
    [
        pytest.param(name, beams, marks=[long] if beams > 1 and name != RECORDINGS[0] else [])
        for name in RECORDINGS
        for beams in (1, 5)
    ],
)
def test_the_same_tokens_as_ctranslate2_of_the_same_features(
    peer: faster_whisper.WhisperModel, name: str, beams: int
) -> None:
    heard = peer.feature_extractor(faster_whisper.decode_audio(str(DATA_DIR / name)))
    features = np.zeros((heard.shape[0], FRAMES), np.float32)
    features[:, : heard.shape[1]] = heard[:, :FRAMES]
    tokenizer = load_tokenizer(SPEECH_MODEL_DIR)
    prompt = [token_id(tokenizer, token) for token in (START, LANGUAGE, TASK, NO_TIMESTAMPS)]
    data = np.ascontiguousarray(features.T, "<f4").tobytes()
    window = EncoderInput(frames=FRAMES, mels=len(features), data=data)
    settings = EngineSettings(model=BUNDLED_SPEECH, dtype="float32", threads=1)
    with LocalEngine(settings) as engine:
        assert engine.info.speech is not None
        suppressed = engine.info.speech.suppress_tokens
        params = SamplingParams(temperature=0.0, num_beams=beams)
        requests = transcribe_requests(
            prompt,
            params,
            engine.info,
            request_id=name,
            encoder_input=window,
            rules=SpeechRules(suppress_tokens=suppressed),
        )
        tokens = [token for output in engine.run(requests) for token in output.tokens]
    [expected] = peer.model.generate(
        StorageView.from_array(features[None]), [prompt], beam_size=beams, suppress_blank=False,
        suppress_tokens=list(suppressed),
    )  # fmt: skip
    assert tokens == [*expected.sequences_ids[0], token_id(tokenizer, END)]


@pytest.mark.parametrize(
    "weight_dtype",
    [pytest.param("float32", marks=long), pytest.param("bf16", marks=long), "int8"],
)
def test_few_words_are_wrong(weight_dtype: str) -> None:
    said = {item.name: item.text for number in heldout.SETS for item in heldout.read(number)}
    with Transcriber(weight_dtype=weight_dtype, threads=1) as transcriber:
        assert transcriber.info.require_program().kv_dtype == (
            "int8" if weight_dtype == "int8" else "bfloat16"
        )
        heard = {
            name: transcriber.transcribe(DATA_DIR / f"{name}.{ending}").text()
            for name, ending in heldout.FORMATS.items()
        }
    expected = [plain_text(said[name]) for name in heard]
    assert jiwer.wer(expected, [plain_text(text) for text in heard.values()]) <= TARGET


def test_a_whole_call_becomes_its_text(galley: Transcriber) -> None:
    call = msgspec.json.decode((CALL_DIR / "call.json").read_bytes(), type=heldout.Call)
    segments = list(galley.transcribe(CALL_DIR / "call.opus"))
    assert (
        jiwer.wer(plain_text(call.text), plain_text(" ".join(s.text for s in segments))) <= TARGET
    )
    assert len(segments) >= 2
    assert [s.start for s in segments] == sorted(s.start for s in segments)
